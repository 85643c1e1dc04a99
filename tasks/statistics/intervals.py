"""Intervals of shares, clustered by problem. Never Wald: a share of 0 or 1 keeps a width.

Wilson (1927) is the score interval; Clopper and Pearson (1934) the exact one. With several samples of a problem the
Wilson interval is taken at the effective number of observations that the spread between problems leaves
(Rao and Scott 1992), so that samples of one problem never pass for independent problems.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.statistics.distributions import binomial_at_least, binomial_at_most, quantile, upper_tail


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided interval; `n` is the (effective) number of observations behind it."""

    estimate: float
    low: float
    high: float
    n: float = 0.0


def _check_counts(k: float, n: float) -> None:
    if n <= 0 or not 0 <= k <= n:
        raise ValueError(f"expected 0 <= successes <= n and n > 0, found {k!r} of {n!r}")


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"expected a confidence between 0 and 1, found {confidence!r}")


def wilson(k: float, n: float, confidence: float = 0.95) -> Interval:
    """Return the two-sided Wilson score interval of `k` successes of `n` (both may be effective, not whole)."""
    _check_counts(k, n)
    _check_confidence(confidence)
    z = quantile(0.5 + confidence / 2.0)
    share = k / n
    denominator = 1.0 + z * z / n
    centre = (share + z * z / (2.0 * n)) / denominator
    half = z * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n)) / denominator
    low = 0.0 if k == 0 else max(0.0, centre - half)
    high = 1.0 if k == n else min(1.0, centre + half)
    return Interval(share, low, high, n)


def score_p(share: float, n: float, bound: float) -> float:
    """Return the one-sided score p-value of "the true share is at most `bound`"; its inversion is Wilson's low end."""
    _check_counts(share, 1)
    if bound >= 1.0:
        return 1.0
    if bound < 0.0 or (bound == 0.0 and share > 0.0):
        return 0.0
    if bound == 0.0:
        return 1.0
    return upper_tail((share - bound) / math.sqrt(bound * (1.0 - bound) / n))


def _solve(rising: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2.0


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the exact two-sided interval of `k` successes of `n`."""
    _check_counts(k, n)
    _check_confidence(confidence)
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if k == 0 else _solve(lambda p: binomial_at_least(k, n, p), tail, 0.0, k / n)
    high = 1.0 if k == n else _solve(lambda p: -binomial_at_most(k, n, p), -tail, k / n, 1.0)
    return Interval(k / n, low, high, n)


def effective_size(values: Sequence[float], most: float) -> float:
    """Return how many independent yes-or-no observations the values in [0, 1] are worth.

    One value per problem. It is never less than the number of problems (values inside [0, 1] vary no more than yes
    and no do) and never more than `most`, the number there would be if all samples were independent.
    """
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.fsum((v - mean) ** 2 for v in values) / count
    binary = mean * (1.0 - mean)
    if binary <= 1e-15:
        return float(count)
    if spread <= 0.0:
        return max(float(count), most)
    return min(max(count * binary / spread, float(count)), max(most, float(count)))


def independent_size(samples: Sequence[int]) -> float:
    """Return the size that a mean of per-problem means has when all samples are independent."""
    return len(samples) ** 2 / math.fsum(1.0 / s for s in samples)


def bounded_interval(values: Sequence[float], most: float, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of per-problem values in [0, 1]; see `effective_size`."""
    if not values:
        raise ValueError("expected at least one problem")
    if min(values) < 0.0 or max(values) > 1.0:
        raise ValueError(f"expected values between 0 and 1, found {min(values)!r} to {max(values)!r}")
    mean = math.fsum(values) / len(values)
    n = effective_size(values, most)
    return wilson(min(mean * n, n), n, confidence)


def cluster_interval(per_problem: Sequence[tuple[int, int]], confidence: float = 0.95) -> Interval:
    """Return the interval of the mean over problems of (successes, valid samples).

    Problems without a valid sample are left out; with one sample per problem this is Wilson's interval.
    """
    valid = [(s, n) for s, n in per_problem if n > 0]
    if not valid:
        raise ValueError("expected at least one problem with a valid sample")
    return bounded_interval([s / n for s, n in valid], independent_size([n for _, n in valid]), confidence)
