"""The on-policy loop of policy gradients: draw problems, roll out groups, judge, compare, update."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from specs.algorithms import PolicyGradientAlgorithm
from specs.distillation import FullVocabulary
from specs.errors import Interrupted, TrainingError
from specs.group_relative import DAPO
from specs.records import Trajectory
from specs.self_teaching import SelfTaught
from specs.turn_credit import TurnCredit
from specs.value_based import ValueBased
from tasks.episodes.token_signals import TokenSignal
from tasks.learning.checkpoints import Pace
from tasks.learning.critic import CriticLearner
from tasks.learning.learner import Learner
from tasks.learning.replay import PREFIX
from tasks.learning.rows import TrainingRow, rows_from
from tasks.loops.collect import Arena
from tasks.loops.curriculum import CurriculumOrder
from tasks.loops.fit import Hooks
from tasks.loops.groups import GroupStats, overlong_figures, rollout_figures
from tasks.loops.order import ProblemOrder
from tasks.loops.replayed import Extra, Mixture
from tasks.loops.resampling import StepRollouts, draw_step
from tasks.loops.ruin import check_fall, check_last_update, fall, solved
from tasks.loops.scoring import ScoringQueue, early_rows
from tasks.loops.self_teaching import PREFIX as FROZEN
from tasks.loops.self_teaching import SelfTeaching
from tasks.loops.stepping import (
    State,
    StepReport,
    check_cut,
    check_learnt,
    fallen,
    last_checkpoint,
    probe_of,
    reasons,
    save_checkpoint,
)
from tasks.loops.teacher_terms import Term
from tasks.loops.token_lessons import Panel
from tasks.loops.updates import StepRows, left_out, update, whole_turns
from tasks.policy.llama import Llama

_CRITIC = "critic."


@dataclass(frozen=True, slots=True)
class OnPolicy:
    """A policy-gradient stage: what is fixed before its first step."""

    spec: PolicyGradientAlgorithm
    problems: ProblemOrder | CurriculumOrder
    seed: int
    max_length: int
    load_weights: Callable[[int], None]
    """Give the sampler the learner's weights, as those of this step."""
    reference: Llama | None = None
    """Frozen copy of the policy the stage started from; needed where `kl_coef` is above 0."""
    exact: bool = False
    """The sampler's logprobs are the trainer's up to rounding: it is this process, with the trainer's precision."""
    critic: CriticLearner | None = None
    """Gives the advantages, where the algorithm has one."""
    mixture: Mixture | None = None
    """Gives what trains beside the fresh rollouts, where the algorithm replays."""
    teaching: SelfTeaching | None = None
    """The self that teaches, where the algorithm has one."""
    panel: Panel | None = None
    """The teachers, where the algorithm has a distillation term."""
    keep: Callable[[int, list[Trajectory]], None] | None = None
    """Takes each step's rollouts."""
    keep_signals: Callable[[int, list[TokenSignal]], None] | None = None
    """Takes what teachers said in each step."""
    before_save: Callable[[int], None] | None = None
    """Called with the step before a checkpoint is written."""


@dataclass(slots=True)
class OnPolicyReport(StepReport):
    """What the stage did. In a step without an update no group varied, or what varied was left out."""

    flat_run: int = 0
    """Steps in a row, up to now, in which there was nothing to compare, or no update."""
    running_mean: float | None = None
    """Mean reward of the steps so far, where the algorithm compares with it."""
    draws: list[list[int]] = field(default_factory=list)
    """By step, the problems asked for in each round of rollouts."""
    solved: list[list[float]] = field(default_factory=list)
    """By step, the share of successes of each problem that has a valid rollout."""
    last_update: list[TrainingRow] = field(default_factory=list[TrainingRow])
    """Fresh rows of the last step that made an update; empty where that was before a resume."""
    replay_left: dict[str, int] = field(default_factory=dict)
    """Reason -> trajectories that the replay buffer did not take in, or that have left it."""


def train_policy_gradient(
    learner: Learner, arena: Arena, stage: OnPolicy, hooks: Hooks | None = None
) -> OnPolicyReport:
    """Run the stage's steps; a resume continues bit for bit from the last checkpoint.

    Raises TrainingError where it cannot learn (no group varies, all is cut or rejected, sampler and trainer disagree) or has
    ruined the policy, and Interrupted, after saving, where `hooks.stop` asks.
    """
    hooks = hooks or Hooks()
    spec, report = stage.spec, OnPolicyReport()
    if stage.problems.size < spec.problems_per_step:
        report.notes.append(
            f"problems_per_step is {spec.problems_per_step} but there are {stage.problems.size} problems; "
            "each step uses all of them"
        )
    _resume(learner, stage, report, hooks)
    order, pace = stage.problems, Pace(hooks.checkpoint_seconds)
    for rounds in report.draws if isinstance(order, ProblemOrder) else ():
        for count in rounds:
            order.draw(count)
    while len(report.curve) < spec.steps:
        step = len(report.curve)
        if hooks.stop():
            _save(learner, report, stage, hooks, pace)
            raise Interrupted(f"stopped after step {step} of {spec.steps}; the same command goes on from there")
        before = order.state() if isinstance(order, CurriculumOrder) else {}
        try:
            drawn, seconds = _rollouts(arena, stage, report, step, hooks)
        except Interrupted:
            if isinstance(order, CurriculumOrder):
                order.load_state(before)  # the step begins again, and draws the same
            _save(learner, report, stage, hooks, pace)
            raise
        _train(learner, stage, drawn, report, hooks, seconds)
        if pace.due() and len(report.curve) < spec.steps:
            _save(learner, report, stage, hooks, pace)
    if spec.max_flat_steps is not None:
        check_learnt(learner.updates, report, "there was nothing to compare, or what there was had no gradient")
    found = fall(report.solved, report.curve[-len(report.solved) :])
    report.notes += check_fall(found, learner.optimizer.learning_rate, chosen=isinstance(order, CurriculumOrder))
    return report


def _rollouts(
    arena: Arena, stage: OnPolicy, report: OnPolicyReport, step: int, hooks: Hooks
) -> tuple[StepRollouts, float]:
    began = time.monotonic()
    stage.load_weights(step)
    if stage.teaching is not None:
        drawn = stage.teaching.draw(arena, stage.problems.draw, seed=stage.seed, step=step, stop=hooks.stop)
        if stage.keep is not None:
            stage.keep(step, [*drawn.collected.trajectories, *drawn.beside])
        return drawn, time.monotonic() - began
    with _scoring(arena, stage, hooks) as queue:
        drawn = draw_step(
            replace(arena, ended=queue.put),
            stage.spec,
            stage.problems.draw,
            seed=stage.seed,
            step=step,
            running_mean=report.running_mean,
            stop=queue.heed,
        )
    if stage.keep is not None:
        stage.keep(step, drawn.collected.trajectories)
    return drawn, time.monotonic() - began


def _scoring(arena: Arena, stage: OnPolicy, hooks: Hooks) -> ScoringQueue:
    """Return what has teachers score rollouts as they end; none is asked where a search or a redraw decides what trains."""
    spec = stage.spec
    chosen = spec.best_of > 1 or (isinstance(spec, DAPO) and spec.resample is not None)
    over = FullVocabulary() if spec.distill is None else spec.distill.over
    rows = partial(early_rows, max_length=stage.max_length, truncated=spec.truncated, whole_turns=whole_turns(spec))
    return ScoringQueue(None if chosen else stage.panel, over, rows, hooks.stop, near=not arena.repeatable)


def _train(
    learner: Learner,
    stage: OnPolicy,
    drawn: StepRollouts,
    report: OnPolicyReport,
    hooks: Hooks,
    rollout_seconds: float,
) -> None:
    """Update on one batch of rollouts and put the step's figures on the curve."""
    spec, step, began = stage.spec, len(report.curve), time.monotonic()
    trajectories, stats = drawn.collected.trajectories, drawn.stats
    figures = rollout_figures(trajectories, stats) | overlong_figures(trajectories, spec) | drawn.figures()
    check_cut(figures, spec, report.curve, learner.optimizer.learning_rate)
    rows, dropped = _rows(stage, drawn)
    extra = _extra(learner, stage, drawn, step)
    rows.rows += extra.rows
    if stage.teaching is not None:
        lesson = stage.teaching.teach(learner, rows.rows, drawn, step, stage.max_length)
        spec, rows.also = lesson.spec, lesson.components
        figures |= lesson.figures
        left_out(report.dropped, lesson.dropped)
    rows.term = term = _term(spec, stage.panel, trajectories, step)
    done = update(learner, rows, spec, stage.reference, max_length=stage.max_length, step=step, critic=stage.critic)
    fresh = [row for row in done.rows if not row.stale]
    if term is not None and stage.keep_signals is not None:
        stage.keep_signals(step, term.signals)
    if stage.mixture is not None:
        stage.mixture.learn(extra, step, fresh, trajectories)
        report.replay_left = stage.mixture.left
    if isinstance(stage.problems, CurriculumOrder):
        stage.problems.learn([*trajectories, *drawn.beside])
        figures |= stage.problems.figures()
    left_out(report.dropped, dropped, done.dropped)
    report.draws.append(drawn.rounds)
    report.running_mean = stats.running_mean
    helped = done.updated and _taught_otherwise(spec, rows, extra, figures)
    idle = not (done.updated or done.warm_up)
    report.flat_run = report.flat_run + 1 if idle or (stats.flat and not helped) else 0
    report.skipped_steps += idle
    report.rollouts += len(trajectories)
    report.policy_tokens += drawn.collected.policy_tokens
    report.trained_tokens += done.trained_tokens
    figures |= done.figures | extra.figures
    if stage.teaching is not None:
        figures |= stage.teaching.learn(learner, figures, step)
        report.rollouts += len(drawn.beside)
        report.policy_tokens += sum(t.policy_tokens for t in drawn.beside)
    report.curve.append(figures)
    report.solved.append(solved(trajectories))
    report.missing_logprobs += done.missing_logprobs
    report.probe = probe_of(trajectories, stage.max_length) or report.probe
    seconds = rollout_seconds + time.monotonic() - began
    speed = sum(len(t.ids) for t in trajectories) / max(1e-9, seconds)
    hooks.metrics(step + 1, **figures, tokens_per_second=speed, rollout_share=rollout_seconds / max(1e-9, seconds))
    shown = {"success": figures["success"], "reward": figures["reward_mean"], "tokens_per_second": speed}
    hooks.progress("rollouts and updates", (step + 1) / spec.steps, shown)
    if spec.max_flat_steps is not None and report.flat_run >= spec.max_flat_steps:
        left_out(lost := dict(dropped), done.dropped)
        told = (
            _flat_message(spec, stats, report.flat_run) if stats.flat else _idle_message(report.flat_run, lost, figures)
        )
        raise TrainingError(told + fallen(report.curve, learner.optimizer.learning_rate))
    if done.updated:
        report.last_update = fresh
    if step + 1 == spec.steps:
        check_last_update(learner, report.last_update, spec.steps)


def _term(
    spec: PolicyGradientAlgorithm, panel: Panel | None, trajectories: Sequence[Trajectory], step: int
) -> Term | None:
    """Return the teachers' term of a step; None where the algorithm has none."""
    if spec.distill is None:
        return None
    assert panel is not None, "distill needs teachers"
    return Term(spec.distill, panel, {t.id: t for t in trajectories}, step, spec.steps)


def _rows(stage: OnPolicy, drawn: StepRollouts) -> tuple[StepRows, dict[str, int]]:
    """Return the rows that train, and the trajectories that do not by reason.

    Silent groups have an advantage of 0. KL, entropy and what teachers say are of all trajectories, so that there they
    train beside the policy's term; else sums over tokens are divided by them too. What dynamic sampling has replaced is
    in neither.
    """
    spec, stats, found = stage.spec, drawn.stats, drawn.collected.trajectories
    make = partial(
        rows_from,
        max_length=stage.max_length,
        truncated="drop" if spec.truncated == "mask" else "score",
        behaviour=True,
    )
    unmoved = set[str]() if isinstance(spec, DAPO) and spec.resample is not None else set(stats.unmoved)
    advantages, turns, silent = dict(stats.advantages), dict(stats.turn_advantages), set(stats.unmoved)
    on_all = isinstance(spec, SelfTaught) and spec.form == "gated"
    if spec.kl_coef > 0 or spec.entropy_coef != 0 or spec.distill is not None or on_all:
        advantages |= dict.fromkeys(unmoved, 0.0)
        turns |= {t.id: [0.0] * len(t.turns) for t in found if t.id in unmoved} if isinstance(spec, TurnCredit) else {}
        unmoved = set()
    rows, made = make([t for t in found if t.id in advantages], advantages=advantages, turn_advantages=turns or None)
    for row in rows:
        row.silent = row.trajectory in silent
    counted, _ = make([t for t in found if t.id in unmoved])
    return StepRows(rows, len({row.trajectory for row in counted}), exact=stage.exact), made.dropped


def _taught_otherwise(spec: PolicyGradientAlgorithm, rows: StepRows, extra: Extra, figures: dict[str, float]) -> bool:
    """Return whether a step had anything to learn from beside the comparison of its fresh rollouts."""
    gated = isinstance(spec, SelfTaught) and spec.form == "gated" and figures["privileged"] > 0
    return spec.distill is not None or gated or bool(rows.also) or bool(extra.rows)


def _extra(learner: Learner, stage: OnPolicy, drawn: StepRollouts, step: int) -> Extra:
    """Return what the step trains on beside its fresh rows."""
    if stage.mixture is None:
        return Extra()
    spec, silent = stage.spec, len(drawn.stats.unmoved)
    if isinstance(spec, DAPO) and spec.resample is not None:
        silent = drawn.short * spec.group_size  # the others have been replaced
    return stage.mixture.extra(learner, step, silent)


def _flat_message(spec: PolicyGradientAlgorithm, stats: GroupStats, steps: int) -> str:
    alone = spec.group_size == 1 or isinstance(spec, ValueBased)
    what = "no two trajectories had" if alone else f"no group of {spec.group_size} had"
    return (
        f"in {steps} steps in a row {what} two different rewards (last step: "
        f"{stats.flat_right} groups all right, {stats.flat_wrong} all wrong), so there is nothing to learn. Ways out: "
        "all right: harder problems; all wrong: sft or rft first, easier problems, a larger group_size; "
        "or a reward with more grades"
    )


def _idle_message(steps: int, lost: dict[str, int], figures: dict[str, float]) -> str:
    """Return why steps made no update although trajectories had different rewards."""
    clipped = figures.get("clip_fraction", 0.0)
    why = f"what varied was left out of the loss ({reasons(lost)})" if lost else "no token that varied had a gradient"
    return (
        f"in {steps} steps in a row no update was made; in the last one {why}"
        + (f", and {clipped:.0%} of the tokens were beyond the clip" if clipped else "")
        + ". Ways out, by reason: bounds of correction that the sampler keeps to, or policy.sampler_precision: fp32; a "
        "larger agent.max_new_tokens where trajectories were cut; a wider clip"
    )


def _resume(learner: Learner, stage: OnPolicy, report: OnPolicyReport, hooks: Hooks) -> None:
    found = last_checkpoint(report, hooks)
    if found is None:
        return
    learner.load_state(_part(found.tensors, ""), found.data["learner"])
    if stage.critic is not None:
        stage.critic.load_state(_part(found.tensors, _CRITIC), found.data["critic"])
    if stage.teaching is not None:
        stage.teaching.load_state(found.tensors, found.data["teaching"])
    if stage.mixture is not None:
        stage.mixture.load_state(found.tensors, found.data["replay"])
    if isinstance(stage.problems, CurriculumOrder):
        stage.problems.load_state(found.data["curriculum"])


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of the critic under their own names, or those that are not the critic's."""
    if not prefix:
        return {n: t for n, t in tensors.items() if not n.startswith((_CRITIC, PREFIX, FROZEN))}
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _save(learner: Learner, report: OnPolicyReport, stage: OnPolicy, hooks: Hooks, pace: Pace) -> None:
    save_checkpoint(report, hooks, pace, partial(_state, learner, stage), stage.before_save)


def _state(learner: Learner, stage: OnPolicy) -> State:
    tensors, state = learner.state()
    data: dict[str, Any] = {"learner": state}
    if stage.critic is not None:
        own, data["critic"] = stage.critic.state()
        tensors |= {f"{_CRITIC}{name}": value for name, value in own.items()}
    if stage.teaching is not None:
        own, data["teaching"] = stage.teaching.state()
        tensors |= own
    if stage.mixture is not None:
        own, data["replay"] = stage.mixture.state()
        tensors |= own
    if isinstance(stage.problems, CurriculumOrder):
        data["curriculum"] = stage.problems.state()
    return tensors, data
