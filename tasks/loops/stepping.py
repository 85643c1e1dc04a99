"""What loops that roll out and update step by step share: their report, their checkpoints, what they tell after a step."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from specs.bounds import RolloutBounds
from specs.errors import TrainingError
from specs.records import Trajectory
from tasks.learning.checkpoints import Checkpoint, Pace
from tasks.learning.rows import TrainingRow, rows_from
from tasks.loops.collect import LONGER
from tasks.loops.fit import Hooks

_log = logging.getLogger(__name__)
PROBE = 8
"""Rows that the report holds."""
_OF_THE_ATTEMPT = ("notes", "probe", "last_update")
_RECENT = 3
"""Steps within which a share that doubles has jumped; what grows more slowly is learnt."""
State = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and plain data of a checkpoint."""


@dataclass(slots=True)
class StepReport:
    """What a stage did; `curve` has one line of figures per step."""

    curve: list[dict[str, float]] = field(default_factory=list)
    rollouts: int = 0
    policy_tokens: int = 0
    trained_tokens: int = 0
    skipped_steps: int = 0
    """Steps without an update."""
    dropped: dict[str, int] = field(default_factory=dict)
    missing_logprobs: int = 0
    """Tokens that did not train, as the sampler gave no logprob."""
    notes: list[str] = field(default_factory=list)
    probe: list[TrainingRow] = field(default_factory=list)
    """A few rows of the last step that has some, to try a saved policy on."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a checkpoint; notes and rows belong to the attempt and stay out."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _OF_THE_ATTEMPT}

    def take(self, data: dict[str, Any]) -> None:
        """Take over what `to_json` returned."""
        for name, value in data.items():
            setattr(self, name, value)

    def sentences(self, steps: int, why_skipped: str) -> list[str]:
        """Return what every such stage notes in its receipt."""
        found = list(self.notes)
        if self.skipped_steps:
            found.append(f"{self.skipped_steps} of {steps} steps made no update: {why_skipped}")
        if self.missing_logprobs:
            found.append(f"{self.missing_logprobs} tokens have no logprob of the sampler and did not train")
        left = sorted(self.dropped.items())
        return found + [f"{n} trajectories left out of the loss: {reason}" for reason, n in left]


def probe_of(trajectories: Iterable[Trajectory], max_length: int) -> list[TrainingRow]:
    """Return a few rows of the first trajectories that give one; none where the policy wrote no token."""
    rows: list[TrainingRow] = []
    for trajectory in trajectories:
        rows += rows_from([trajectory], max_length=max_length, truncated="score")[0]
        if len(rows) >= PROBE:
            break
    return rows[:PROBE]


def check_cut(
    figures: dict[str, float], spec: RolloutBounds, curve: Sequence[dict[str, float]], learning_rate: float
) -> None:
    """Raise TrainingError where too many of a step's trajectories were cut; `curve` has the steps before it."""
    cut = figures["truncated"]
    if cut <= spec.max_truncated:
        return
    told = f"step {len(curve)}: {100 * cut:.0f} % of the trajectories were cut, max_truncated is {spec.max_truncated:g}"
    recent = range(max(0, len(curve) - _RECENT), len(curve))
    calm = min(recent, key=lambda k: (curve[k]["truncated"], -k), default=0)
    updates = [k for k in recent if k >= calm and curve[k].get("updated")]
    if updates and curve[calm]["truncated"] <= cut / 2:
        before = f"{100 * curve[calm]['truncated']:.0f} % in step {calm}"
        which = ", ".join(str(k) for k in updates)
        raise TrainingError(
            f"{told}; it was {before}, before the update{'s' * (len(updates) > 1)} of step {which}. The policy does not end "
            f"its turns since: lower optimizer.learning_rate (now {learning_rate:g}); "
            "a larger agent.max_new_tokens does not mend it"
        )
    raise TrainingError(f"{told}; {LONGER}")


def fallen(curve: Sequence[dict[str, float]], learning_rate: float) -> str:
    """Return a sentence where a stage succeeds less than half as often as it did, after updates; empty elsewhere."""
    best, now = max(range(len(curve)), key=lambda k: curve[k]["success"]), curve[-1]["success"]
    once = curve[best]["success"]
    if now >= once / 2 or not any(line.get("updated") for line in curve[best:]):
        return ""
    return (
        f". Success was {once:.2f} in step {best} and is {now:.2f}, after updates: before any of that, lower "
        f"optimizer.learning_rate (now {learning_rate:g}) and start the stage again"
    )


def check_learnt(updates: int, report: StepReport, why: str) -> None:
    """Raise TrainingError where a stage ends as it began."""
    if updates:
        return
    left = reasons(report.dropped)
    raise TrainingError(
        f"none of {len(report.curve)} steps made an update: {why}" + (f". Left out of the loss: {left}" if left else "")
    )


def reasons(dropped: dict[str, int]) -> str:
    """Return what was left out, the most frequent reason first."""
    return ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items(), key=lambda item: (-item[1], item[0])))


def last_checkpoint(report: StepReport, hooks: Hooks) -> Checkpoint | None:
    """Return the checkpoint that a stage goes on from, its report taken over; None where it begins."""
    if hooks.checkpointer is None:
        return None
    found = hooks.checkpointer.latest()
    report.notes += hooks.checkpointer.damaged
    hooks.resume_metrics(found.step if found else 0)
    if found is not None:
        report.take(found.data["report"])
        _log.info("went on from step %d", found.step)
    return found


def save_checkpoint(
    report: StepReport, hooks: Hooks, pace: Pace, state: Callable[[], State], before: Callable[[int], None] | None
) -> None:
    """Keep a stage's state with its report; `before` is called with the step first."""
    if hooks.checkpointer is None:
        return
    began = time.monotonic()
    if before is not None:
        before(len(report.curve))
    tensors, data = state()
    hooks.checkpointer.save(len(report.curve), tensors, data | {"report": report.to_json()})
    pace.saved(time.monotonic() - began)
