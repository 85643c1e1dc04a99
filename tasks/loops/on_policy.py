"""The on-policy loop of GRPO: draw problems, roll out groups, judge, compare within groups, update."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specs.algorithms import GRPO
from specs.errors import Interrupted, TrainingError
from specs.records import Problem, Trajectory
from tasks.episodes.seeds import derive
from tasks.learning.algorithms import loss_for
from tasks.learning.checkpoints import Pace
from tasks.learning.learner import Learner, StepReport
from tasks.learning.rows import TrainingRow, rows_from
from tasks.loops.collect import Arena, Collected, Draw, check_invalid, rollouts
from tasks.loops.fit import Hooks
from tasks.loops.groups import GroupStats, group_stats, rollout_figures
from tasks.loops.order import ProblemOrder
from tasks.policy.llama import Llama

_log = logging.getLogger(__name__)

PROBE = 8
"""Rows of the last step that the report holds."""


@dataclass(frozen=True, slots=True)
class OnPolicy:
    """A GRPO stage: what is fixed before its first step."""

    spec: GRPO
    problems: ProblemOrder
    seed: int
    max_length: int
    load_weights: Callable[[int], None]
    """Give the sampler the learner's weights, as those of this step."""
    reference: Llama | None = None
    """Frozen copy of the policy the stage started from; needed where `kl_coef` is above 0."""
    keep: Callable[[int, list[Trajectory]], None] | None = None
    """Takes each step's rollouts."""
    before_save: Callable[[int], None] | None = None
    """Called with the step before a checkpoint is written."""


@dataclass(slots=True)
class OnPolicyReport:
    """What the stage did; `curve` has one line of figures per step."""

    curve: list[dict[str, float]] = field(default_factory=list)
    flat_run: int = 0
    """Steps in a row, up to now, in which no group varied."""
    rollouts: int = 0
    policy_tokens: int = 0
    trained_tokens: int = 0
    skipped_steps: int = 0
    """Steps without an update: no group varied, or what varied was left out."""
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    probe: list[TrainingRow] = field(default_factory=list)
    """A few rows of the last step, to try a saved policy on."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a checkpoint; notes and probe belong to the attempt and stay out."""
        names = ("curve", "flat_run", "rollouts", "policy_tokens", "trained_tokens", "skipped_steps", "dropped")
        return {name: getattr(self, name) for name in names}

    def take(self, data: dict[str, Any]) -> None:
        """Take over what `to_json` returned."""
        for name, value in data.items():
            setattr(self, name, value)


def train_grpo(learner: Learner, arena: Arena, stage: OnPolicy, hooks: Hooks | None = None) -> OnPolicyReport:
    """Run the stage's steps; a resume continues bit for bit from the last checkpoint.

    Raises TrainingError where it cannot learn (no group varies, all is cut, sampler and trainer disagree) and
    Interrupted, after saving, where `hooks.stop` asks.
    """
    hooks = hooks or Hooks()
    spec, report = stage.spec, OnPolicyReport()
    if stage.problems.size < spec.problems_per_step:
        report.notes.append(
            f"problems_per_step is {spec.problems_per_step} but there are {stage.problems.size} problems; "
            "each step uses all of them"
        )
    _resume(learner, report, hooks)
    order, pace = stage.problems, Pace(hooks.checkpoint_seconds)
    for _ in range(len(report.curve)):
        order.draw(spec.problems_per_step)
    while len(report.curve) < spec.steps:
        step = len(report.curve)
        if hooks.stop():
            _save(learner, report, stage, hooks, pace)
            raise Interrupted(f"stopped after step {step} of {spec.steps}; the same command goes on from there")
        problems = order.draw(spec.problems_per_step)
        try:
            collected, seconds = _rollouts(arena, stage, problems, step, hooks)
        except Interrupted:
            _save(learner, report, stage, hooks, pace)
            raise
        _train(learner, stage, collected, report, hooks, seconds)
        if pace.due() and len(report.curve) < spec.steps:
            _save(learner, report, stage, hooks, pace)
    return report


def _rollouts(
    arena: Arena, stage: OnPolicy, problems: list[Problem], step: int, hooks: Hooks
) -> tuple[Collected, float]:
    began = time.monotonic()
    stage.load_weights(step)
    draw = Draw(stage.spec.group_size, stage.spec.temperature, derive(stage.seed, "step", step), f"step{step}")
    collected = check_invalid(rollouts(arena, problems, draw, stop=hooks.stop), arena.reward)
    if stage.keep is not None:
        stage.keep(step, collected.trajectories)
    return collected, time.monotonic() - began


def _train(
    learner: Learner,
    stage: OnPolicy,
    collected: Collected,
    report: OnPolicyReport,
    hooks: Hooks,
    rollout_seconds: float,
) -> None:
    """Update on one batch of rollouts and put the step's figures on the curve."""
    spec, step, began = stage.spec, len(report.curve), time.monotonic()
    stats = group_stats(collected.trajectories, spec.scale_rewards)
    figures = rollout_figures(collected.trajectories, stats)
    if figures["truncated"] >= spec.max_truncated:
        raise TrainingError(
            f"step {step}: {100 * figures['truncated']:.0f} % of the trajectories were cut, max_truncated is "
            f"{spec.max_truncated:g}; raise agent.max_new_tokens or policy.init.max_length"
        )
    rows = _rows(stage, collected, stats, report)
    updates = _update(learner, stage, rows, step)
    report.flat_run = 0 if stats.advantages else report.flat_run + 1
    report.skipped_steps += not any(u.updated for u in updates)
    report.rollouts += len(collected.trajectories)
    report.policy_tokens += collected.policy_tokens
    report.trained_tokens += sum(u.trained_tokens for u in updates)
    figures |= _update_figures(updates)
    report.curve.append(figures)
    report.probe = rows_from(collected.trajectories[:PROBE], max_length=stage.max_length, truncated="score")[0]
    seconds = rollout_seconds + time.monotonic() - began
    speed = sum(len(t.ids) for t in collected.trajectories) / max(1e-9, seconds)
    hooks.metrics(step + 1, **figures, tokens_per_second=speed, rollout_share=rollout_seconds / max(1e-9, seconds))
    shown = {"success": figures["success"], "reward": figures["reward_mean"], "tokens_per_second": speed}
    hooks.progress("rollouts and updates", (step + 1) / spec.steps, shown)
    if report.flat_run >= spec.max_flat_steps:
        raise TrainingError(_flat_message(spec, stats, report.flat_run))


def _rows(stage: OnPolicy, collected: Collected, stats: GroupStats, report: OnPolicyReport) -> list[TrainingRow]:
    rows, made = rows_from(
        [t for t in collected.trajectories if t.id in stats.advantages],
        max_length=stage.max_length,
        truncated="drop" if stage.spec.truncated == "mask" else "score",
        behaviour=True,
        advantages=stats.advantages,
    )
    for reason, count in made.dropped.items():
        report.dropped[reason] = report.dropped.get(reason, 0) + count
    return rows


def _update(learner: Learner, stage: OnPolicy, rows: list[TrainingRow], step: int) -> list[StepReport]:
    """Pass over the batch `updates_per_batch` times; from the second pass on, ratios are to the first pass."""
    spec = stage.spec
    if rows and spec.kl_coef > 0:
        assert stage.reference is not None, "kl_coef > 0 needs a reference"
        for row, values in zip(rows, learner.logprobs(rows, stage.reference), strict=True):
            row.reference_logprobs = values
    reports: list[StepReport] = []
    for number in range(spec.updates_per_batch):
        first = number == 0
        done = learner.step(
            rows,
            loss_for(spec),
            spec.aggregation,
            guard=partial(_check_fresh, spec=spec, step=step) if first else None,
            keep_logprobs=first and spec.updates_per_batch > 1,
        )
        for row, values in zip(rows, done.logprobs, strict=False):
            row.old_logprobs = values
        reports.append(done)
    return reports


def _check_fresh(report: StepReport, *, spec: GRPO, step: int) -> None:
    """Before the first update of a batch, trainer and sampler hold the same weights and must agree."""
    gap = report.metrics.get("logprob_gap", 0.0)
    if gap > spec.max_logprob_gap:
        raise TrainingError(
            f"step {step}: the trainer's and the sampler's logprobs of a fresh batch differ by {gap:.4f} nats a token, "
            f"max_logprob_gap is {spec.max_logprob_gap:g}: weights, tokenizer, temperature or precision differ between "
            "them. Set policy.precision and policy.sampler_precision to fp32 to see which"
        )


def _update_figures(updates: list[StepReport]) -> dict[str, float]:
    first, last = updates[0], updates[-1]
    figures = {
        "updated": float(any(u.updated for u in updates)),
        "loss": first.loss,
        "grad_norm": first.grad_norm,
        "learning_rate": last.learning_rate,
        "clip_fraction": last.metrics.get("clip_fraction", 0.0),
        "trained_tokens": float(first.trained_tokens),
    }
    for name in ("entropy", "logprob_gap", "sampler_kl_k3", "ess", "reference_kl_k3"):
        if name in first.metrics:
            figures[name] = first.metrics[name]
    return figures


def _flat_message(spec: GRPO, stats: GroupStats, steps: int) -> str:
    return (
        f"in {steps} steps in a row no group of {spec.group_size} had two different rewards (last step: "
        f"{stats.flat_right} groups all right, {stats.flat_wrong} all wrong), so there is nothing to learn. Ways out: "
        "all right: harder problems; all wrong: sft or rft first, easier problems, a larger group_size; "
        "or a reward with more grades"
    )


def _resume(learner: Learner, report: OnPolicyReport, hooks: Hooks) -> None:
    if hooks.checkpointer is None:
        return
    found = hooks.checkpointer.latest()
    report.notes += hooks.checkpointer.damaged
    hooks.resume_metrics(found.step if found else 0)
    if found is None:
        return
    learner.load_state(found.tensors, found.data["learner"])
    report.take(found.data["report"])
    _log.info("went on from step %d", found.step)


def _save(learner: Learner, report: OnPolicyReport, stage: OnPolicy, hooks: Hooks, pace: Pace) -> None:
    if hooks.checkpointer is None:
        return
    began = time.monotonic()
    if stage.before_save is not None:
        stage.before_save(len(report.curve))
    tensors, data = learner.state()
    hooks.checkpointer.save(len(report.curve), tensors, {"learner": data, "report": report.to_json()})
    pace.saved(time.monotonic() - began)
