"""Bodies of distillation from open teachers: a checkpoint made ready, and the stage itself."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs, panels, training
from flows.work.keeping import Keeper, load_weights
from flows.work.reading import environments, records
from specs.algorithms import ALGORITHMS
from specs.distillation import OPD
from specs.errors import DataError
from specs.records import Demonstration, Trajectory
from specs.short_opd import ShortOPD
from specs.teachers import ModelTeacher
from tasks.episodes.agents import agent_for
from tasks.episodes.render import render_demonstration
from tasks.episodes.shards import told_apart, write_shards
from tasks.files import write_json
from tasks.learning.learner import Learner
from tasks.loops.collect import drift_notes
from tasks.loops.distill import Distilling, DistillReport, train_opd, trained_tokens
from tasks.loops.order import ProblemOrder
from tasks.loops.rollout_store import RolloutStore
from tasks.loops.shortening import Shortening
from tasks.loops.stepping import probe_of
from tasks.policy.foreign import read_teacher, save_teacher
from tasks.policy.store import LoadedPolicy

_LAST_STEPS = 5
"""Steps over which the receipt's figures are averaged."""


def model(node: NodeContext) -> Outcome:
    """Read a teacher's checkpoint; writes `policy/`, the files that a teacher is loaded from."""
    spec = ModelTeacher.model_validate(node.params["teacher"])
    node.progress("loading the teacher", None, {})
    spec = spec.model_copy(update={"revision": node.params["digest"]})
    teacher = read_teacher(spec, node.params["template"], Path(node.params["path"]))
    save_teacher(teacher, node.out / "policy")
    count = float(sum(p.numel() for p in teacher.model.parameters()))
    return Outcome(metrics={"parameters": count}, notes=teacher.notes)


def train(node: NodeContext) -> Outcome:
    """Train by on-policy distillation; writes `policy/`, `curve.json`, `signals.json` and `trajectories/`."""
    spec = ALGORITHMS.validate(node.params["algorithm"])
    assert isinstance(spec, OPD), f"{type(spec).__name__} does not distil on the policy's rollouts"
    policy = inputs.start_policy(node)
    learner = training.learner_for(node, policy, spec.optimizer, spec.steps * spec.updates_per_batch)
    arena, sampler = inputs.arena(node, policy)
    keeper = Keeper(RolloutStore(node.checkpoints / "rollouts"))
    asked = panels.panel(node, policy, spec.over)
    stage = Distilling(
        spec=spec,
        problems=ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node)),
        panel=asked,
        seed=node.seed,
        max_length=policy.config.max_length,
        load_weights=partial(load_weights, sampler, learner, node.id),
        demonstrations=_demonstrations(node, policy) if spec.demonstrations else (),
        shape=Shortening(spec, arena.max_new_tokens) if isinstance(spec, ShortOPD) else None,
        keep=keeper.keep,
        keep_signals=keeper.keep_signals,
        before_save=panels.settling(keeper, asked),
    )
    report = train_opd(learner, arena, stage, inputs.hooks(node))
    kept = keeper.all(spec.steps)
    inputs.save_result(node, policy, learner, report.probe or probe_of(kept, policy.config.max_length))
    write_shards(node.out / "trajectories", kept)
    taught = panels.write_taught(node, asked, kept, keeper.signals(spec.steps))
    write_json(node.out / "curve.json", _curve(report))
    notes = [
        *inputs.precision_notes(node),
        *inputs.empty_notes(node),
        *taught,
        *_notes(report, spec),
        *drift_notes(kept),
    ]
    cost = _cost(report, learner) | server_cost(report.curve)
    return Outcome(metrics=_metrics(report), cost=cost, notes=[*notes, *server_notes(report.curve)])


def _demonstrations(node: NodeContext, policy: LoadedPolicy) -> list[Trajectory]:
    """Return the stage's demonstrations in the policy's tokens. DataError where its data hold none."""
    agent, worlds = agent_for(inputs.agent_spec(node)), environments(node)
    found = [r for name in inputs.filled(node) for r in records(node, name) if isinstance(r, Demonstration)]
    if not found:
        raise DataError(
            f"{node.id}: demonstrations is above 0, but none of its data sets holds any; add one to the stage's data"
        )
    rendered = [
        render_demonstration(r, agent, policy.template, worlds[r.problem.environment].tools(r.problem)) for r in found
    ]
    return told_apart("demonstrations", rendered)


def _curve(report: DistillReport) -> dict[str, Any]:
    steps = [{"step": i + 1} | line for i, line in enumerate(report.curve)]
    return {"steps": steps, "skipped_steps": report.skipped_steps, "dropped": report.dropped}


def _metrics(report: DistillReport) -> dict[str, float | None]:
    """Return figures of the last steps; those of the first as `first_…`."""
    first, last = report.curve[0], report.curve[-_LAST_STEPS:]
    names = ("success", "reward_mean", "teacher_gap", "divergence", "coverage", "truncated", "policy_tokens", "entropy")
    metrics: dict[str, float | None] = {}
    for name in (*names, "logprob_gap", "overlap", "kept_tokens", "completion_limit", "looping"):
        given = [line[name] for line in last if name in line]
        if given:
            metrics[name] = sum(given) / len(given)
    firsts = {f"first_{n}": first[n] for n in ("success", "teacher_gap") if n in first}
    return metrics | firsts | {"skipped_steps": float(report.skipped_steps)}


def _cost(report: DistillReport, learner: Learner) -> dict[str, float]:
    return {
        "rollouts": float(report.rollouts),
        "tokens": float(report.policy_tokens),
        "taught_tokens": float(report.taught_tokens),
        "trained_tokens": float(trained_tokens(report.curve)),
        "steps": float(learner.updates),
    }


def _notes(report: DistillReport, spec: OPD) -> list[str]:
    notes = report.sentences(spec.steps, "no token had a weight, or all agreed")
    silent = report.trained_tokens - report.taught_tokens
    notes.append(
        f"tokens: {report.policy_tokens} generated in {report.rollouts} rollouts, {report.taught_tokens} scored by teachers, "
        f"{trained_tokens(report.curve)} trained"
    )
    return [*notes, *([f"no teacher said anything about {silent} tokens; they did not train"] if silent > 0 else [])]


def server_cost(curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return requests and tokens that servers got, by the figures of a stage's steps; nothing where there is no server."""
    calls, tokens = _sum(curve, "teacher_calls"), _sum(curve, "teacher_tokens")
    return {"teacher_calls": calls, "teacher_tokens": tokens} if calls else {}


def server_notes(curve: Sequence[Mapping[str, float]]) -> list[str]:
    """Return what a person should know of rows that no server scored."""
    failed = _sum(curve, "unscored_rows")
    if not failed:
        return []
    names = {name.rpartition(".")[2] for line in curve for name in line}
    reasons = sorted(n for n in names if n.startswith("unscored_") and n != "unscored_rows")
    told = ", ".join(f"{_sum(curve, n):.0f} {n.removeprefix('unscored_')}" for n in reasons)
    return [
        f"{failed:.0f} of {_sum(curve, 'teacher_rows'):.0f} rows have no score of a teacher's server ({told}); it taught "
        "nothing about them"
    ]


def _sum(curve: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the sum over steps of a figure, of all teachers that tell it."""
    return sum(v for line in curve for n, v in line.items() if n.rpartition(".")[2] == name)
