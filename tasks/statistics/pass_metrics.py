"""pass@k, pass^k and samples to success from n samples with c successes per problem.

pass@k: Chen et al. 2021, arXiv:2107.03374 (unbiased, never by resampling); pass^k: Yao et al. 2024, arXiv:2406.12045.
A problem with fewer than k valid samples has no value; it is left out and counted, never taken as 0 or 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Return the chance that one of k tries succeeds; None where k > n."""
    _check(n, c, k)
    if k > n:
        return None
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_hat_k(n: int, c: int, k: int) -> float | None:
    """Return the chance that all of k tries succeed; None where k > n."""
    _check(n, c, k)
    return None if k > n else math.comb(c, k) / math.comb(n, k)


def samples_to_success(n: int, c: int) -> float:
    """Return the expected position of the first success in a random order; n + 1 stands for "none seen"."""
    _check(n, c, 1)
    return (n + 1) / (c + 1)


def _check(n: int, c: int, k: int) -> None:
    if n < 0 or not 0 <= c <= n or k < 1:
        raise ValueError(f"expected 0 <= c <= n and k >= 1, found n={n!r} c={c!r} k={k!r}")


@dataclass(frozen=True, slots=True)
class ProblemMean:
    """The mean over the problems that have a value; `left_out` have none."""

    value: float | None
    problems: int
    left_out: int


def over_problems(
    metric: Callable[[int, int, int], float | None], per_problem: Sequence[tuple[int, int]], k: int
) -> ProblemMean:
    """Return the mean over problems of (successes, valid samples) of `pass_at_k` or `pass_hat_k`."""
    values = [v for c, n in per_problem if (v := metric(n, c, k)) is not None]
    mean = math.fsum(values) / len(values) if values else None
    return ProblemMean(mean, len(values), len(per_problem) - len(values))


def positive_problem_rate(per_problem: Sequence[tuple[int, int]]) -> float | None:
    """Return the share of problems with a success; it grows with the samples, so compare at equal n only."""
    valid = [c for c, n in per_problem if n > 0]
    return sum(c > 0 for c in valid) / len(valid) if valid else None
