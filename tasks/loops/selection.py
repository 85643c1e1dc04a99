"""Rejection sampling: which of the policy's own trajectories become examples, and why the others do not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specs.errors import TrainingError
from specs.records import Trajectory
from specs.supervised import RFT, RewardWeighted
from tasks.episodes.shards import tool_errors


@dataclass(slots=True)
class Selection:
    """Ids in the order they were drawn, and what became of the rest."""

    ids: list[str]
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> trajectories: `infrastructure, invalid, truncated, below_threshold, unfinished, outside_band,
    tool_errors, repeated, beyond_top_k, no_success`."""
    problems: int = 0
    positive_problems: int = 0
    pass_rates: dict[str, float] = field(default_factory=dict)
    """By problem, over its valid trajectories."""

    @property
    def positive_rate(self) -> float:
        """Return the share of problems with at least one trajectory that passes."""
        return self.positive_problems / self.problems if self.problems else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `pass_rates` as a histogram in tenths."""
        histogram = [0] * 11
        for rate in self.pass_rates.values():
            histogram[int(rate * 10)] += 1
        return {
            "selected": self.ids,
            "dropped": dict(sorted(self.dropped.items())),
            "problems": self.problems,
            "positive_problems": self.positive_problems,
            "positive_problem_rate": self.positive_rate,
            "pass_rate_histogram": histogram,
        }


def select(trajectories: Sequence[Trajectory], spec: RFT) -> Selection:
    """Return the trajectories to train on.

    In this order: integrity (infrastructure, invalid, truncated never), success and reward, finished (what ran into
    the turn limit or ended in an error is no example, whatever its state), the problem's band of success rates, tool
    errors, distinct token sequences, and the best `top_k` of a problem by reward (most first), policy tokens (fewest
    first), id. The rate of a problem is over all its valid trajectories, cut ones included.
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
    best = distinct if spec.top_k is None else distinct[: spec.top_k]
    _drop(chosen, "beyond_top_k", len(distinct) - len(best))
    return best


def _distinct(ranked: list[Trajectory]) -> list[Trajectory]:
    first: dict[tuple[int, ...], Trajectory] = {}
    for trajectory in ranked:
        first.setdefault(tuple(trajectory.ids), trajectory)
    return list(first.values())


def _drop(chosen: Selection, reason: str, count: int = 1) -> None:
    if count:
        chosen.dropped[reason] = chosen.dropped.get(reason, 0) + count
