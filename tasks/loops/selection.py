"""Rejection sampling: which of the policy's own trajectories become examples, and why the others do not."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specs.errors import TrainingError
from specs.records import Source, Trajectory
from specs.supervised import RFT, Diversity, RewardWeighted
from tasks.episodes.shards import tool_errors
from tasks.statistics.intervals import Interval
from tasks.statistics.paired import tango_interval


@dataclass(slots=True)
class Selection:
    """Ids in the order they were drawn, and what became of the rest."""

    ids: list[str]
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> trajectories: `infrastructure, invalid, truncated, below_threshold, unfinished, outside_band,
    tool_errors, repeated, same_calls, overlap, beyond_top_k, no_success`."""
    problems: int = 0
    positive_problems: int = 0
    pass_rates: dict[str, float] = field(default_factory=dict)
    """By problem, over its valid trajectories."""

    @property
    def positive_rate(self) -> float:
        """Return the share of problems with at least one trajectory that passes."""
        return self.positive_problems / self.problems if self.problems else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data, `pass_rates` also as a histogram in tenths."""
        histogram = [0] * 11
        for rate in self.pass_rates.values():
            histogram[int(rate * 10)] += 1
        return {
            "selected": self.ids,
            "dropped": dict(sorted(self.dropped.items())),
            "problems": self.problems,
            "positive_problems": self.positive_problems,
            "positive_problem_rate": self.positive_rate,
            "pass_rates": self.pass_rates,
            "pass_rate_histogram": histogram,
        }


def select(trajectories: Sequence[Trajectory], spec: RFT) -> Selection:
    """Return the trajectories to train on.

    In this order: integrity (infrastructure, invalid, truncated never), success and reward, finished (what ran into
    the turn limit or ended in an error is no example, whatever its state), the problem's band of success rates, tool
    errors; then of a problem, by reward (most first), policy tokens (fewest first) and id: distinct token sequences, none
    too much like a better one, and the best `top_k`. The rate of a problem is over all its valid trajectories, cut ones included.
    """
    chosen, by_problem = _by_problem(trajectories)
    kept: set[str] = set()
    for problem_id, members in by_problem.items():
        kept |= {t.id for t in _select_problem(chosen, problem_id, members, spec)}
    chosen.ids = [t.id for t in trajectories if t.id in kept]
    return chosen


def select_weighted(trajectories: Sequence[Trajectory], spec: RewardWeighted) -> Selection:
    """Return the trajectories that train by the weight of their reward: all that are valid and not cut.

    Of problems that no trajectory solved none, as far as `require_success` says so: the best of failures is no example.
    """
    chosen, by_problem = _by_problem(trajectories)
    kept: set[str] = set()
    for problem_id, members in by_problem.items():
        solved = sum(bool(t.success) and t.status == "finished" for t in members)
        chosen.pass_rates[problem_id] = solved / len(members)
        chosen.positive_problems += solved > 0
        whole = [t for t in members if t.status != "truncated"]
        _drop(chosen, "truncated", len(members) - len(whole))
        if spec.require_success and not solved:
            _drop(chosen, "no_success", len(whole))
        else:
            kept |= {t.id for t in whole}
    chosen.ids = [t.id for t in trajectories if t.id in kept]
    return chosen


def require_positives(selection: Selection, spec: RFT | RewardWeighted, stage: str) -> None:
    """Raise TrainingError, with the ways out, where nothing is left to train on."""
    if selection.ids:
        return
    reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(selection.dropped.items())) or "nothing was drawn"
    lower = (
        f"lower threshold (now {spec.threshold}) and band (now {list(spec.band)})"
        if isinstance(spec, RFT)
        else "switch require_success off, knowing that the best of failures then trains"
    )
    raise TrainingError(
        f"stage {stage}: no trajectory is left to train on ({reasons}; {selection.positive_problems} of "
        f"{selection.problems} problems were solved at all). Ways out: train on demonstrations first (sft), draw more "
        f"samples (now {spec.samples}), choose easier problems, or {lower}"
    )


def gain(before: Mapping[str, float], now: Mapping[str, float]) -> Interval:
    """Return how much the share of problems with a success rose, with its 95 % interval, paired by problem.

    From the success rates of both rounds; a problem without a valid trajectory in either takes no part. With no problem in
    common the interval is all there is.
    """
    common = [(before[p] > 0, now[p] > 0) for p in before.keys() & now.keys()]
    if not common:
        return Interval(0.0, -1.0, 1.0)
    solved, lost = sum(not b and a for b, a in common), sum(b and not a for b, a in common)
    return tango_interval(solved, lost, len(common))


def _by_problem(trajectories: Sequence[Trajectory]) -> tuple[Selection, dict[str, list[Trajectory]]]:
    """Return a selection that holds nothing yet but the counts, and what is usable, by problem."""
    chosen = Selection(ids=[])
    usable: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        reason = _unusable(trajectory)
        if reason:
            _drop(chosen, reason)
        else:
            usable.setdefault(trajectory.problem_id, []).append(trajectory)
    chosen.problems = len({t.problem_id for t in trajectories})
    return chosen, usable


def _unusable(trajectory: Trajectory) -> str | None:
    if trajectory.status == "infrastructure":
        return "infrastructure"
    if trajectory.success is None or trajectory.reward is None or not math.isfinite(trajectory.reward):
        return "invalid"
    return None


def _passes(trajectory: Trajectory, spec: RFT) -> bool:
    if spec.require_success and not trajectory.success:
        return False
    return spec.threshold is None or (trajectory.reward is not None and trajectory.reward >= spec.threshold)


def _select_problem(chosen: Selection, problem_id: str, members: list[Trajectory], spec: RFT) -> list[Trajectory]:
    whole = [t for t in members if t.status != "truncated"]
    good = [t for t in whole if _passes(t, spec)]
    passing = [t for t in good if t.status == "finished"]
    _drop(chosen, "truncated", len(members) - len(whole))
    _drop(chosen, "below_threshold", len(whole) - len(good))
    _drop(chosen, "unfinished", len(good) - len(passing))
    rate = len(passing) / len(members)
    chosen.pass_rates[problem_id] = rate
    chosen.positive_problems += bool(passing)
    low, high = spec.band
    if not low <= rate <= high:
        _drop(chosen, "outside_band", len(passing))
        return []
    limit = spec.max_tool_errors
    clean = [t for t in passing if limit is None or tool_errors(t) <= limit]
    _drop(chosen, "tool_errors", len(passing) - len(clean))
    ranked = sorted(clean, key=lambda t: (-(t.reward or 0.0), t.policy_tokens, t.id))
    distinct = _distinct(ranked) if spec.distinct else ranked
    _drop(chosen, "repeated", len(ranked) - len(distinct))
    diverse = distinct if spec.diversity is None else _diverse(chosen, distinct, spec.diversity)
    best = diverse if spec.top_k is None else diverse[: spec.top_k]
    _drop(chosen, "beyond_top_k", len(diverse) - len(best))
    return best


def _distinct(ranked: list[Trajectory]) -> list[Trajectory]:
    first: dict[tuple[int, ...], Trajectory] = {}
    for trajectory in ranked:
        first.setdefault(tuple(trajectory.ids), trajectory)
    return list(first.values())


def _diverse(chosen: Selection, ranked: list[Trajectory], spec: Diversity) -> list[Trajectory]:
    """Return, the best first, those that are not too much like one that was kept."""
    kept: list[Trajectory] = []
    seen: list[tuple[list[str], set[tuple[int, ...]]]] = []
    for trajectory in ranked:
        made, grams = _calls(trajectory), _ngrams(trajectory, spec.ngram)
        if spec.calls and made and any(made == other for other, _ in seen):
            _drop(chosen, "same_calls")
        elif spec.max_overlap is not None and any(overlap(grams, other) > spec.max_overlap for _, other in seen):
            _drop(chosen, "overlap")
        else:
            kept.append(trajectory)
            seen.append((made, grams))
    return kept


def overlap(first: set[tuple[int, ...]], second: set[tuple[int, ...]]) -> float:
    """Return the Jaccard index of two sets; 1 where both are empty."""
    return len(first & second) / len(first | second) if first or second else 1.0


def _calls(trajectory: Trajectory) -> list[str]:
    return [json.dumps([t.call.name, t.call.arguments], sort_keys=True) for t in trajectory.turns if t.call is not None]


def _ngrams(trajectory: Trajectory, size: int) -> set[tuple[int, ...]]:
    """Return the n-grams of what the policy wrote; all of it where that is shorter."""
    pairs = zip(trajectory.ids, trajectory.sources, strict=True)
    written = [i for i, source in pairs if source == Source.POLICY]
    return {tuple(written[k : k + size]) for k in range(max(1, len(written) - size + 1))}


def _drop(chosen: Selection, reason: str, count: int = 1) -> None:
    if count:
        chosen.dropped[reason] = chosen.dropped.get(reason, 0) + count
