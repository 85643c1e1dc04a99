"""A metric as per-problem values in [0, 1], alone or paired, so that one set of statistics serves all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from specs.gates import Metric
from tasks.judging.results import Evaluated, ProblemResult
from tasks.statistics.intervals import effective_size, independent_size
from tasks.statistics.paired import Pairs, pairs

LOWER_IS_BETTER = frozenset({"invalid_call_rate", "truncated_rate"})


@dataclass(frozen=True, slots=True)
class Values:
    """Per-problem values in [0, 1] with the observations behind each; `asked` problems, some without a value."""

    by_problem: dict[str, float]
    weights: dict[str, int]
    asked: int
    invalid_share: float
    """Share of tries without a verdict."""
    low: float = 0.0
    high: float = 1.0

    @property
    def mean(self) -> float:
        """Return the mean over problems in the metric's own units."""
        return self.low + (self.high - self.low) * math.fsum(self.by_problem.values()) / len(self.by_problem)

    @property
    def most(self) -> float:
        """Return the size if all observations were independent."""
        return independent_size(list(self.weights.values()))

    @property
    def size(self) -> float:
        """Return the effective number of observations."""
        return effective_size(list(self.by_problem.values()), self.most)

    def scaled(self, value: float) -> float:
        """Return a value of the metric's own units in [0, 1]."""
        return (value - self.low) / (self.high - self.low)


Count = Callable[[ProblemResult], int]
_COUNTS: dict[str, tuple[Count, Count]] = {
    "success": (lambda r: r.successes, lambda r: r.valid),
    "success_greedy": (lambda r: int(bool(r.greedy)), lambda r: int(r.greedy is not None)),
    "tool_success": (lambda r: r.worked, lambda r: r.calls),
    "invalid_call_rate": (lambda r: r.invalid_calls, lambda r: r.calls),
    "truncated_rate": (lambda r: r.truncated, lambda r: r.run),
}


def _invalid_share(evaluated: Evaluated, *, greedy: bool) -> float:
    results = evaluated.problems.values()
    if greedy:
        return sum(r.greedy is None for r in results) / max(1, len(results))
    asked = sum(r.samples for r in results)
    return (asked - sum(r.valid for r in results)) / max(1, asked)


def measure(evaluated: Evaluated, metric: Metric) -> Values:
    """Return the values of a metric other than `regressed_cases`."""
    asked = len(evaluated.problems)
    invalid = _invalid_share(evaluated, greedy=metric == "success_greedy")
    if metric == "reward":
        low, high = evaluated.reward_range
        found = {r.id: (r.reward, r.valid) for r in evaluated.problems.values() if r.reward is not None}
        values = {k: min(1.0, max(0.0, (v - low) / (high - low))) for k, (v, _) in found.items()}
        return Values(values, {k: max(1, n) for k, (_, n) in found.items()}, asked, invalid, low, high)
    part, whole = _COUNTS[metric]
    usable = [r for r in evaluated.problems.values() if whole(r) > 0]
    values = {r.id: part(r) / whole(r) for r in usable}
    return Values(values, {r.id: whole(r) for r in usable}, asked, invalid)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two policies on the problems for which both have a value; the sign is such that more is better."""

    counts: Pairs
    effect: float
    """Mean difference, candidate minus baseline, better is positive, in the metric's own units."""
    width: float
    """Units of the metric that a difference of 1 stands for."""
    compared: int
    solved: list[str]
    """Problems on which the candidate does better, most first."""
    broken: list[str]
    discordant: float
    """Share of pairs that differ."""


def compare_paired(new: Values, old: Values, metric: Metric) -> Paired | None:
    """Return the paired comparison, or None where no problem has both values."""
    shared = [k for k in new.by_problem if k in old.by_problem]
    if not shared:
        return None
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    low, high = min(new.low, old.low), max(new.high, old.high)
    width = high - low

    def unit(values: Values, problem: str) -> float:
        return (values.low + (values.high - values.low) * values.by_problem[problem] - low) / width

    differences = {k: sign * (unit(new, k) - unit(old, k)) for k in shared}
    counts = pairs(list(differences.values()), independent_size([min(new.weights[k], old.weights[k]) for k in shared]))
    by_size = sorted(shared, key=lambda k: (-abs(differences[k]), k))
    return Paired(
        counts=counts,
        effect=width * math.fsum(differences.values()) / len(shared),
        width=width,
        compared=len(shared),
        solved=[k for k in by_size if differences[k] > 1e-12],
        broken=[k for k in by_size if differences[k] < -1e-12],
        discordant=(counts.solved + counts.broken) / counts.n,
    )
