"""Paired comparison of two policies on the same problems.

`b` problems are newly solved, `c` newly broken, `n` are compared; the difference is (b - c) / n.

- McNemar's exact test (1947): given that b + c differ, is either direction more frequent?
- Difference against a margin: exact and unconditional, outcomes ordered by Tango's score statistic (Tango 1998), the
  nuisance share maximised over (Berger and Sidik 2003). Never Wald: without a discordant pair the lower bound at 149
  pairs is -0.02, and at 5 pairs it is -0.45.
- Several samples of a problem: per-problem mean differences are worth an effective number of pairs, as in
  `intervals.effective_size`; counts are rounded against the claim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tasks.statistics.distributions import binomial_at_least, binomial_at_most, binomial_pmf, quantile, upper_tail
from tasks.statistics.intervals import Interval

Side = Literal["two_sided", "better", "worse"]
EXACT_UP_TO = 3000
"""Pairs up to which the unconditional test is exact; beyond it Tango's score p-value is used."""

LARGE = 25
"""Discordant pairs from which McNemar's chi-square stands for the exact test."""
SMALL = 100
"""Pairs up to which the jumps of the p-value are worth looking at."""


def mcnemar_exact(b: int, c: int, side: Side = "two_sided") -> float:
    """Return the exact p-value; `better` asks whether b is too many, `worse` whether c is. b + c = 0 gives 1."""
    if b < 0 or c < 0:
        raise ValueError(f"expected counts, found b={b!r} c={c!r}")
    if side == "better":
        return binomial_at_least(b, b + c, 0.5)
    if side == "worse":
        return binomial_at_least(c, b + c, 0.5)
    return min(1.0, 2.0 * binomial_at_most(min(b, c), b + c, 0.5)) if b + c else 1.0


def mcnemar_mid_p(b: int, c: int) -> float:
    """Return the two-sided mid-p value: less conservative, not exact; no decision here rests on it."""
    return mcnemar_exact(b, c) - binomial_pmf(min(b, c), b + c, 0.5) if b != c else 1.0


def mcnemar_chi_square(b: int, c: int) -> float:
    """Return the chi-square statistic with continuity correction; only fit for b + c of `LARGE` and more."""
    return (abs(b - c) - 1.0) ** 2 / (b + c) if b + c else 0.0


def difference_se(b: float, c: float, n: float) -> float:
    """Return the Wald standard error of (b - c) / n, to compare with other tools; no decision here rests on it."""
    return math.sqrt(b + c - (b - c) ** 2 / n) / n


def tango_statistic(b: float, c: float, n: float, difference: float) -> float:
    """Return Tango's score statistic of "the true difference is `difference`"; large where the true one is larger."""
    first = -b - c + (2.0 * n - b + c) * difference
    last = -c * difference * (1.0 - difference)
    share = (math.sqrt(max(0.0, first * first - 8.0 * n * last)) - first) / (4.0 * n)
    variance = n * (2.0 * share + difference * (1.0 - difference))
    excess = b - c - n * difference
    if variance <= 1e-12:
        return 0.0 if abs(excess) < 1e-12 else math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)


def tango_interval(b: float, c: float, n: float, confidence: float = 0.95) -> Interval:
    """Return the two-sided score interval of the paired difference."""
    z = quantile(0.5 + confidence / 2.0)
    estimate = (b - c) / n
    return Interval(estimate, _cross(b, c, n, z, (-1.0, estimate)), _cross(b, c, n, -z, (estimate, 1.0)), n)


def _cross(b: float, c: float, n: float, z: float, between: tuple[float, float]) -> float:
    low, high = between
    for _ in range(60):
        middle = (low + high) / 2.0
        if tango_statistic(b, c, n, middle) > z:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _region(b: int, c: int, n: int, difference: float) -> list[int]:
    """Return, by number newly solved, the most newly broken with which an outcome is as extreme as the one seen."""
    seen = tango_statistic(b, c, n, difference) - 1e-9
    most, limit = [], -1
    for solved in range(n + 1):
        while limit + 1 <= n - solved and tango_statistic(solved, limit + 1, n, difference) >= seen:
            limit += 1
        most.append(min(limit, n - solved))
    return most


def _probability(most: Sequence[int], n: int, solved: float, broken: float) -> float:
    """Return the probability of the region when shares `solved` and `broken` are true."""
    spread = 7.0 * math.sqrt(n * solved * (1.0 - solved)) + 8.0
    first, last = max(0, math.floor(n * solved - spread)), min(n, math.ceil(n * solved + spread))
    given = min(1.0, broken / (1.0 - solved)) if solved < 1.0 else 0.0
    return math.fsum(
        weight * binomial_at_most(most[k], n - k, given)
        for k in range(first, last + 1)
        if most[k] >= 0 and (weight := binomial_pmf(k, n, solved)) > 1e-12
    )


@lru_cache(maxsize=4096)
def difference_p(b: int, c: int, n: int, margin: float) -> float:
    """Return the one-sided p-value of "the true difference is at most `margin`" (negative: not worse by more).

    Exact up to `EXACT_UP_TO` pairs: the largest probability, over all shares of discordant pairs that keep the
    difference at the margin, of an outcome at least as extreme.
    """
    if not 0 <= b + c <= n or min(b, c) < 0 or n < 1 or not -1.0 < margin < 1.0:
        raise ValueError(f"expected b + c <= n and a margin within (-1, 1), found {b!r} {c!r} {n!r} {margin!r}")
    if n > EXACT_UP_TO:
        return upper_tail(tango_statistic(b, c, n, margin))
    most = _region(b, c, n, margin)
    low, high = max(0.0, -margin), (1.0 - margin) / 2.0

    def at(u: float) -> float:
        broken = low + (high - low) * u * u
        return _probability(most, n, max(0.0, broken + margin), broken)

    steps = 24
    values = [at(i / steps) for i in range(steps + 1)]
    top = max(range(steps + 1), key=values.__getitem__)
    best = values[top]
    left, right = max(0, top - 1) / steps, min(steps, top + 1) / steps
    for _ in range(6):
        thirds = (left + (right - left) / 3.0, right - (right - left) / 3.0)
        first, second = at(thirds[0]), at(thirds[1])
        best = max(best, first, second)
        left, right = (left, thirds[1]) if first > second else (thirds[0], right)
    return min(1.0, best)


def lower_bound(b: int, c: int, n: int, alpha: float = 0.05) -> float:
    """Return the one-sided lower bound of the difference: the largest margin that the exact test still rejects."""
    guess = tango_interval(b, c, n, 1.0 - 2.0 * alpha).low
    step = 0.1 * ((b - c) / n - guess) + 0.25 / n
    low = high = guess
    below = above = math.log(max(_p(b, c, n, guess), 1e-300) / alpha)
    while low > -1.0 and below > 0.0:
        low, step = max(-1.0, low - step), 2.0 * step
        below = math.log(max(_p(b, c, n, low), 1e-300) / alpha)
    while high < 1.0 and above <= 0.0:
        low, below = high, above
        high, step = min(1.0, high + step), 2.0 * step
        above = math.log(_p(b, c, n, high) / alpha)
    even = True
    while high - low > 2e-4:  # bisection and false position by turns: the p-value has jumps
        part = 0.5 if even else min(0.9, max(0.1, below / (below - above)))
        even, middle = not even, low + part * (high - low)
        found = math.log(max(_p(b, c, n, middle), 1e-300) / alpha)
        low, below, high, above = (middle, found, high, above) if found <= 0.0 else (low, below, middle, found)
    return _below_jumps(b, c, n, alpha, low) if n <= SMALL else low


def _below_jumps(b: int, c: int, n: int, alpha: float, low: float) -> float:
    """Go down while any margin just below is not rejected: with few pairs the p-value is not monotone."""
    places = [low - 0.1 * k / n for k in range(1, 11)]
    kept = [k for k, margin in enumerate(places) if margin > -1.0 and _p(b, c, n, margin) > alpha]
    return max(-1.0, places[kept[-1]] - 0.1 / n) if kept else low


def _p(b: int, c: int, n: int, margin: float) -> float:
    if margin <= -1.0:
        return 0.0
    return 1.0 if margin >= 1.0 else difference_p(b, c, n, margin)


def upper_bound(b: int, c: int, n: int, alpha: float = 0.05) -> float:
    """Return the one-sided upper bound of the difference."""
    return -lower_bound(c, b, n, alpha)


def noninferiority(b: int, c: int, n: int, margin: float, alpha: float = 0.05) -> tuple[bool, float, float]:
    """Return whether "no worse by `margin`" is shown, its p-value, and the lower bound of the difference."""
    p = difference_p(b, c, n, -margin)
    return p <= alpha, p, lower_bound(b, c, n, alpha)


def superiority_p(b: int, c: int, n: int, margin: float = 0.0) -> float:
    """Return the one-sided p-value of "better by more than `margin`"; McNemar's where the margin is 0."""
    return mcnemar_exact(b, c, "better") if margin == 0.0 else difference_p(b, c, n, margin)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Effective counts of paired problems; whole when each problem was asked once."""

    solved: float
    broken: float
    n: float

    def against_better(self) -> tuple[int, int, int]:
        """Return whole counts rounded against the claim that the new policy is better."""
        n = max(1, math.floor(self.n + 1e-6))
        solved, broken = math.floor(self.solved + 1e-6), math.ceil(self.broken - 1e-6)
        return min(solved, n), min(broken, n - min(solved, n)), n

    def against_worse(self) -> tuple[int, int, int]:
        """Return whole counts rounded against the claim that the new policy is worse."""
        n = max(1, math.floor(self.n + 1e-6))
        solved, broken = math.ceil(self.solved - 1e-6), math.floor(self.broken + 1e-6)
        return min(solved, n - min(broken, n)), min(broken, n), n


def pairs(differences: Sequence[float], most: float) -> Pairs:
    """Return the effective counts of per-problem differences in [-1, 1] (new minus old).

    `most` is the number of pairs there would be if all samples were independent.
    """
    if not differences:
        raise ValueError("expected at least one pair")
    count = len(differences)
    solved = math.fsum(max(d, 0.0) for d in differences) / count
    broken = math.fsum(max(-d, 0.0) for d in differences) / count
    mean = solved - broken
    spread = math.fsum((d - mean) ** 2 for d in differences) / count
    binary = solved + broken - mean * mean
    n = float(count)
    if binary > 1e-15:
        n = max(most, n) if spread <= 0.0 else min(max(count * binary / spread, n), max(most, n))
    return Pairs(solved * n, broken * n, n)
