"""The loop of on-policy distillation: draw problems, roll out, ask the teachers about every token, update."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Protocol

from specs.distillation import OPD, SampledTokens
from specs.errors import Interrupted
from specs.records import Trajectory
from tasks.episodes.seeds import derive
from tasks.episodes.token_signals import TokenSignal
from tasks.learning.checkpoints import Pace
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.loops.collect import Arena, Collected, Draw, check_invalid, rollouts
from tasks.loops.fit import Hooks
from tasks.loops.order import ProblemOrder
from tasks.loops.scoring import ScoringQueue, early_rows
from tasks.loops.stepping import (
    PROBE,
    State,
    StepReport,
    check_cut,
    check_learnt,
    last_checkpoint,
    probe_of,
    save_checkpoint,
)
from tasks.loops.token_lessons import Lesson, Panel, figures_of, lesson, teach
from tasks.loops.token_signals import signals_of

_WHY = "no token had a weight, all were outside over.ratio_band, or policy and teacher agree exactly"


def trained_tokens(curve: Sequence[Mapping[str, float]]) -> int:
    """Return the tokens that kept a weight, of those that teachers said something about, over a stage's steps."""
    return sum(round(line["trained_tokens"] * line["coverage"] * line.get("kept_tokens", 1.0)) for line in curve)


class Shape(Protocol):
    """What decides, beside the spec, how long completions may be and which of their tokens count."""

    def limit(self, step: int) -> int | None:
        """Return the most tokens of a completion at a step; None: as the agent says."""
        ...

    def weigh(self, rows: Sequence[TrainingRow], divergences: Sequence[Sequence[float]]) -> dict[str, float]:
        """Change the rows' `distill` weights by the divergences at their tokens, and return figures."""
        ...

    def learn(self, trajectories: Sequence[Trajectory], figures: dict[str, float]) -> None:
        """Take note of a finished step."""
        ...

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        ...

    def load_state(self, data: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        ...


@dataclass(frozen=True, slots=True)
class Distilling:
    """A stage of on-policy distillation: what is fixed before its first step."""

    spec: OPD
    problems: ProblemOrder
    panel: Panel
    seed: int
    max_length: int
    load_weights: Callable[[int], None]
    """Give the sampler the learner's weights, as those of this step."""
    demonstrations: Sequence[Trajectory] = ()
    """What `spec.demonstrations` of a step's trajectories are drawn from."""
    shape: Shape | None = None
    keep: Callable[[int, list[Trajectory]], None] | None = None
    """Takes each step's rollouts."""
    keep_signals: Callable[[int, list[TokenSignal]], None] | None = None
    """Takes what teachers said in each step."""
    before_save: Callable[[int], None] | None = None
    """Called with the step before a checkpoint is written."""


@dataclass(slots=True)
class DistillReport(StepReport):
    """What the stage did. A step without an update had no token with a weight, or policy and teacher agreed exactly."""

    draws: list[int] = field(default_factory=list)
    """By step, the problems asked for."""
    taught_tokens: int = 0
    """Tokens about which teachers were asked and said something."""


def train_opd(learner: Learner, arena: Arena, stage: Distilling, hooks: Hooks | None = None) -> DistillReport:
    """Run the stage's steps; a resume continues bit for bit from the last checkpoint.

    Raises TrainingError where it cannot learn (all is cut, sampler and trainer disagree, teachers say too little, no
    step made an update) and Interrupted, after saving, where `hooks.stop` asks.
    """
    hooks = hooks or Hooks()
    spec, report = stage.spec, DistillReport()
    if stage.problems.size < (wanted := _split(spec)[0]):
        report.notes.append(
            f"a step asks for {wanted} problems but there are {stage.problems.size}; each uses all of them"
        )
    _resume(learner, stage, report, hooks)
    for count in report.draws:
        stage.problems.draw(count)
    pace = Pace(hooks.checkpoint_seconds)
    while len(report.curve) < spec.steps:
        step = len(report.curve)
        if hooks.stop():
            _save(learner, report, stage, hooks, pace)
            raise Interrupted(f"stopped after step {step} of {spec.steps}; the same command goes on from there")
        began = time.monotonic()
        try:
            drawn = _rollouts(arena, stage, step, hooks)
            seconds = time.monotonic() - began
            _train(learner, stage, drawn, report)  # a server is asked before anything is updated
        except Interrupted:
            _save(learner, report, stage, hooks, pace)
            raise
        _tell(stage, report, hooks, (seconds, time.monotonic() - began), drawn)
        if pace.due() and len(report.curve) < spec.steps:
            _save(learner, report, stage, hooks, pace)
    if spec.min_coverage > 0:
        check_learnt(learner.updates, report, _WHY)
    return report


def _split(spec: OPD) -> tuple[int, int]:
    """Return how many problems are rolled out in a step and how many demonstrations stand beside them."""
    beside = round(spec.demonstrations * spec.problems_per_step * spec.group_size)
    return spec.problems_per_step - round(beside / spec.group_size), beside


def _rollouts(arena: Arena, stage: Distilling, step: int, hooks: Hooks) -> Collected:
    stage.load_weights(step)
    spec = stage.spec
    limit = None if stage.shape is None else stage.shape.limit(step)
    if limit is not None:
        arena = replace(arena, max_new_tokens=min(limit, arena.max_new_tokens))
    asked = Draw(spec.group_size, spec.temperature, derive(stage.seed, "step", step), f"step{step}")
    problems = stage.problems.draw(_split(spec)[0])
    rows = partial(early_rows, max_length=stage.max_length, truncated=spec.truncated)
    with ScoringQueue(stage.panel, spec.over, rows, hooks.stop, near=not arena.repeatable) as queue:
        followed = replace(arena, ended=queue.put)
        found = rollouts(followed, problems, asked, stop=queue.heed) if problems else []
    drawn = check_invalid(found, arena.reward)
    if stage.keep is not None:
        stage.keep(step, drawn.trajectories)
    return drawn


def _beside(stage: Distilling, step: int) -> list[Trajectory]:
    """Return the step's demonstrations; those of a step are drawn without repeats."""
    count = min(_split(stage.spec)[1], len(stage.demonstrations))
    return Random(f"{stage.seed}/demonstrations/{step}").sample(list(stage.demonstrations), count) if count else []


def _train(learner: Learner, stage: Distilling, drawn: Collected, report: DistillReport) -> None:
    """Update on one batch and put the step's figures on the curve."""
    spec, step = stage.spec, len(report.curve)
    figures = figures_of(drawn.trajectories)
    if drawn.trajectories and stage.shape is None:  # a shape cuts on purpose
        check_cut(figures, spec, report.curve, learner.optimizer.learning_rate)
    made = lesson(spec, drawn.trajectories, _beside(stage, step), stage.panel, max_length=stage.max_length, step=step)
    if stage.keep_signals is not None:
        stage.keep_signals(step, list(signals_of(made.rows, made.trajectories, stage.panel)))
    if stage.shape is not None:
        figures |= _reweigh(learner, stage.shape, made, stage)
    done = teach(learner, made, spec, stage.panel, step)
    for reason, count in made.dropped.items():
        report.dropped[reason] = report.dropped.get(reason, 0) + count
    report.draws.append(_split(spec)[0])
    report.rollouts += len(drawn.trajectories)
    report.policy_tokens += drawn.policy_tokens
    report.trained_tokens += int(done["trained_tokens"])
    report.taught_tokens += made.coverage.covered
    report.skipped_steps += not done["updated"]
    report.missing_logprobs += made.missing_logprobs
    report.curve.append(figures | made.figures() | done)
    report.probe = probe_of(drawn.trajectories, stage.max_length) or made.rows[:PROBE] or report.probe
    if stage.shape is not None:
        stage.shape.learn(drawn.trajectories, report.curve[-1])


def _reweigh(learner: Learner, shape: Shape, made: Lesson, stage: Distilling) -> dict[str, float]:
    """Let the shape change the tokens' weights, which sum to 1 again afterwards."""
    if isinstance(stage.spec.over, SampledTokens):
        values = [made.gaps(row) for row in made.rows]
    else:
        learner.distiller = made.distiller(stage.spec, stage.panel, alone=True)
        values = learner.divergences(made.rows)
        learner.distiller = None
    figures = shape.weigh(made.rows, values)
    made.normalize()
    return figures


def _tell(
    stage: Distilling, report: DistillReport, hooks: Hooks, seconds: tuple[float, float], drawn: Collected
) -> None:
    figures, (sampling, whole) = report.curve[-1], seconds
    speed = sum(len(t.ids) for t in drawn.trajectories) / max(1e-9, whole)
    hooks.metrics(len(report.curve), **figures, tokens_per_second=speed, rollout_share=sampling / max(1e-9, whole))
    shown = {"success": figures["success"], "teacher_gap": figures.get("teacher_gap", 0.0), "tokens_per_second": speed}
    hooks.progress("rollouts and distillation", len(report.curve) / stage.spec.steps, shown)


def _resume(learner: Learner, stage: Distilling, report: DistillReport, hooks: Hooks) -> None:
    found = last_checkpoint(report, hooks)
    if found is None:
        return
    learner.load_state(found.tensors, found.data["learner"])
    if stage.shape is not None:
        stage.shape.load_state(found.data["shape"])


def _save(learner: Learner, report: DistillReport, stage: Distilling, hooks: Hooks, pace: Pace) -> None:
    def state() -> State:
        tensors, own = learner.state()
        shape = {} if stage.shape is None else {"shape": stage.shape.state()}
        return tensors, {"learner": own, **shape}

    save_checkpoint(report, hooks, pace, state, stage.before_save)
