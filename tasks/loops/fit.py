"""The supervised loop: a plan of batches, one optimiser step each, checkpoints, and a stop that can be resumed."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from specs.errors import Interrupted, StateError, TrainingError
from tasks.learning.batching import Aggregation
from tasks.learning.checkpoints import Checkpointer, Pace
from tasks.learning.learner import Learner, StepReport
from tasks.learning.rows import TrainingRow
from tasks.loops.divergence import Guard
from tasks.tensors import Loss

_log = logging.getLogger(__name__)


def _no_metrics(step: int, **values: float) -> None:
    """Drop metrics."""


def _no_progress(what: str, share: float | None, figures: dict[str, float]) -> None:
    """Drop progress."""


@dataclass(slots=True)
class Hooks:
    """What a loop reports to and asks; the defaults do nothing."""

    metrics: Callable[..., None] = _no_metrics
    """(step, **values)."""
    resume_metrics: Callable[[int], None] = lambda step: None
    """Forget metrics after this step: they come again."""
    progress: Callable[[str, float | None, dict[str, float]], None] = _no_progress
    stop: Callable[[], bool] = lambda: False
    """True where the loop should save and raise Interrupted."""
    checkpointer: Checkpointer | None = None
    checkpoint_seconds: float = 10.0
    before_step: Callable[[Sequence[int]], None] = lambda rows: None
    """Sees which rows a step trains on, before it; for what depends on the weights of that moment."""


@dataclass(slots=True)
class FitReport:
    """What a fit did. `tokens` counts those of all forward passes, also before a resume."""

    steps: int
    updates: int
    tokens: int
    trained_tokens: int
    first_loss: float
    """Of the first step in which something trained."""
    last_loss: float
    """Mean of the last tenth of those steps."""
    seconds: float
    """Of this attempt."""
    notes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures of the loss, as means of the last tenth of those steps."""


@dataclass(slots=True)
class _Progress:
    """What a checkpoint keeps; lists have an entry for each step in which something trained."""

    step: int = 0
    tokens: int = 0
    trained: int = 0
    losses: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    rejected_costs: list[float] = field(default_factory=list)
    weightless: int = 0
    """Steps without an update whose rows weigh nothing."""
    still: int = 0
    """Steps without an update whose gradient was zero."""

    def take(self, report: StepReport) -> None:
        self.step += 1
        self.tokens += report.tokens
        self.trained += report.trained_tokens
        self.weightless += not report.trained_tokens
        self.still += bool(report.trained_tokens) and not report.updated
        if report.trained_tokens:
            self.losses.append(report.loss)
            self.metrics.append(report.metrics)
        self.costs += [report.cost] if report.cost is not None else []
        self.rejected_costs += [report.rejected_cost] if report.rejected_cost is not None else []

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def idle(self) -> str:
        """Return how many steps made no update, and why; empty where all did."""
        why = {"rows that weigh nothing": self.weightless, "a gradient of zero": self.still}
        return ", ".join(f"{n} had {reason}" for reason, n in why.items() if n)

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        idle = self.weightless + self.still
        return [f"{idle} of {self.step} steps made no update: {self.idle()}"] if idle else []


def fit_supervised(
    learner: Learner,
    rows: Sequence[TrainingRow],
    plan: Sequence[Sequence[int]],
    loss: Loss,
    aggregation: Aggregation = "token",
    *,
    hooks: Hooks | None = None,
) -> FitReport:
    """Train on the rows in the order of `plan` (see `batch_plan`); a resume continues bit for bit.

    Raises Interrupted after saving where `hooks.stop` asks, TrainingError where no step made an update or training has
    diverged.
    """
    hooks = hooks or Hooks()
    if not plan:
        raise TrainingError("no training step: there is no row; see what the data nodes wrote")
    done = _Progress()
    notes = _resume(learner, done, hooks)
    guard = Guard(learner.chance, learner.optimizer.learning_rate, len(plan))
    pace, began = Pace(hooks.checkpoint_seconds), time.monotonic()
    tokens_before = done.tokens
    while done.step < len(plan):
        if hooks.stop():
            _save(learner, done, hooks, pace)
            raise Interrupted(f"stopped after step {done.step} of {len(plan)}; the same command goes on from there")
        hooks.before_step(plan[done.step])
        report = learner.step([rows[i] for i in plan[done.step]], loss, aggregation)
        done.take(report)
        speed = (done.tokens - tokens_before) / max(1e-9, time.monotonic() - began)
        _tell(hooks, done, report, speed, len(plan))
        guard.check(done.costs, done.rejected_costs, done.step)
        if pace.due() and done.step < len(plan):
            _save(learner, done, hooks, pace)
    _check_learnt(learner, done)
    guard.check_last(done.costs, done.rejected_costs, learner.measure([rows[i] for i in plan[-1]], loss, aggregation))
    last = max(1, len(done.losses) // 10)
    tail = done.losses[-last:]
    return FitReport(
        steps=done.step,
        updates=learner.updates,
        tokens=done.tokens,
        trained_tokens=done.trained,
        first_loss=done.losses[0],
        last_loss=sum(tail) / len(tail),
        seconds=time.monotonic() - began,
        notes=[*notes, *done.sentences(), *guard.notes(done.costs)],
        metrics=_means(done.metrics[-last:]),
    )


def _check_learnt(learner: Learner, done: _Progress) -> None:
    """Raise TrainingError where the policy is what it was."""
    if not learner.updates:
        raise TrainingError(
            f"none of {done.step} steps made an update: {done.idle()}. Ways out: more rows in a step, or a weighting that "
            "leaves more of them (rows that weigh nothing); a smaller beta or a larger tau (a gradient of zero)"
        )


def _means(lines: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for line in lines for name in line)
    return {n: sum(line[n] for line in lines if n in line) / sum(n in line for line in lines) for n in names}


def _resume(learner: Learner, done: _Progress, hooks: Hooks) -> list[str]:
    if hooks.checkpointer is None:
        return []
    found = hooks.checkpointer.latest()
    if found is None:
        hooks.resume_metrics(0)
        return list(hooks.checkpointer.damaged)
    learner.load_state(found.tensors, found.data["learner"])
    saved = found.data["progress"]
    if saved["step"] != found.step:
        raise StateError(f"checkpoint of step {found.step}: its counters speak of step {saved['step']}")
    for f in fields(done):
        setattr(done, f.name, saved[f.name])
    hooks.resume_metrics(done.step)
    # to the log and not to the notes: a resumed node seals the receipt of an undisturbed one
    _log.info("went on from step %d", found.step)
    return list(hooks.checkpointer.damaged)


def _save(learner: Learner, done: _Progress, hooks: Hooks, pace: Pace) -> None:
    if hooks.checkpointer is None:
        return
    began = time.monotonic()
    tensors, data = learner.state()
    hooks.checkpointer.save(done.step, tensors, {"learner": data, "progress": done.to_json()})
    pace.saved(time.monotonic() - began)


def _tell(hooks: Hooks, done: _Progress, report: StepReport, speed: float, steps: int) -> None:
    found = {"loss": report.loss} if report.trained_tokens else {}
    hooks.metrics(
        done.step,
        **found,
        learning_rate=report.learning_rate,
        grad_norm=report.grad_norm,
        tokens_per_second=speed,
        **report.metrics,
    )
    hooks.progress("training", done.step / steps, {**found, "tokens_per_second": speed})
