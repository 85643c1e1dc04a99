"""Bodies of supervised nodes: SFT on demonstrations, and the two halves of rejection sampling."""

import json
from collections.abc import Sequence
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs
from specs.algorithms import RFT, SFT
from specs.errors import DataError
from specs.records import Demonstration, Trajectory
from tasks.episodes.agents import agent_for
from tasks.episodes.render import render_demonstration
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, write_shards
from tasks.files import write_json
from tasks.learning.algorithms import loss_for
from tasks.learning.learner import Learner
from tasks.learning.rows import RowReport, TrainingRow, check_rows, merge_reports, rows_from
from tasks.loops.batches import batch_plan
from tasks.loops.collect import Collected, Draw
from tasks.loops.collect import collect as collect_rollouts
from tasks.loops.fit import FitReport, fit_supervised
from tasks.loops.order import ProblemOrder
from tasks.loops.rollout_store import RolloutStore
from tasks.loops.selection import Selection, require_positives, select
from tasks.policy.store import LoadedPolicy


def sft(node: NodeContext) -> Outcome:
    """Train on demonstrations; writes `policy/` and `rows.json`."""
    spec = SFT.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    made = [_demonstration_rows(node, name, policy) for name in node.params["data"]]
    rows = [row for some, _ in made for row in some]
    return _fit(node, policy, rows, merge_reports(r for _, r in made), spec, inputs.weights(node))


def rft(node: NodeContext) -> Outcome:
    """Train on the trajectories that `collect` selected; writes `policy/` and `rows.json`."""
    spec = RFT.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    folder = node.inputs["collect"]
    selected = set(json.loads((folder / "collect.json").read_text(encoding="utf-8"))["selected"])
    chosen = [t for t in read_shards(folder / "trajectories") if t.id in selected]
    if len(chosen) != len(selected):
        raise DataError(
            f"{folder}: collect.json selects {len(selected)} trajectories, the shards hold {len(chosen)} of them; "
            "run the collect node again"
        )
    rows, report = rows_from(chosen, max_length=policy.config.max_length, source="selected")
    check_rows(report, policy.config.max_length)
    return _fit(node, policy, rows, report, spec, None)


def collect(node: NodeContext) -> Outcome:
    """Roll out, judge and select; writes `trajectories/` and `collect.json`."""
    spec = RFT.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    arena, _ = inputs.arena(node, policy)
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    problems = order.draw(spec.problems or order.size)
    draw = Draw(spec.samples, spec.temperature, derive(node.seed, "rollouts"), "collect")
    store = RolloutStore(node.checkpoints / "rollouts")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    found = collect_rollouts(arena, problems, draw, stop=node.stop, store=store, progress=tell)
    chosen = select(found.trajectories, spec)
    require_positives(chosen, spec, node.id)
    goes_on, reason = _goes_on(node, spec, chosen)
    write_shards(node.out / "trajectories", found.trajectories)
    write_json(node.out / "collect.json", chosen.to_json() | {"continue": goes_on, "reason": reason})
    notes = [f"{len(chosen.ids)} of {len(found.trajectories)} trajectories selected; left out: {_counts(chosen)}"]
    if spec.problems and spec.problems > order.size:
        notes.append(f"problems is {spec.problems}, but there are only {order.size}; all were used")
    notes += [] if goes_on else [reason]
    notes += [f"part {name} of earlier rollouts was damaged and drawn again" for name in store.damaged]
    return Outcome(metrics=_collect_metrics(chosen, found), cost=_rollout_cost(found), notes=notes)


def _goes_on(node: NodeContext, spec: RFT, chosen: Selection) -> tuple[bool, str]:
    """Return whether a later round is worth its rollouts, and why."""
    if "previous" not in node.inputs:
        return True, "first round"
    before = json.loads((node.inputs["previous"] / "collect.json").read_text(encoding="utf-8"))
    gain = chosen.positive_rate - before["positive_problem_rate"]
    text = (
        f"share of problems with a success went from {before['positive_problem_rate']:.3f} to "
        f"{chosen.positive_rate:.3f}; min_gain is {spec.min_gain:g}"
    )
    return gain >= spec.min_gain, text if gain >= spec.min_gain else f"{text}: later rounds are left out"


def _counts(chosen: Selection) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(chosen.dropped.items())) or "none"


def _collect_metrics(chosen: Selection, found: Collected) -> dict[str, float | None]:
    valid = [t for t in found.trajectories if t.success is not None]
    return {
        "success": sum(bool(t.success) for t in valid) / len(valid) if valid else None,
        "positive_problem_rate": chosen.positive_rate,
        "selected": float(len(chosen.ids)),
        "truncated": sum(t.status == "truncated" for t in found.trajectories) / len(found.trajectories),
        "invalid": found.invalid / len(found.trajectories),
    }


def _rollout_cost(found: Collected) -> dict[str, float]:
    return {"rollouts": float(len(found.trajectories)), "tokens": float(found.policy_tokens)}


def _demonstration_rows(node: NodeContext, name: str, policy: LoadedPolicy) -> tuple[list[TrainingRow], RowReport]:
    """Return the rows of a set of demonstrations, rendered with the policy's own tokens."""
    agent, worlds = agent_for(inputs.agent_spec(node)), inputs.environments(node)
    rendered: list[Trajectory] = []
    for record in inputs.records(node, name):
        if not isinstance(record, Demonstration):
            raise DataError(
                f"data {name!r}: holds problems, but sft needs demonstrations; use `kind: demonstrations` or a stage "
                "of type rft or grpo"
            )
        tools = worlds[record.problem.environment].tools(record.problem)
        rendered.append(render_demonstration(record, agent, policy.template, tools))
    rows, report = rows_from(rendered, max_length=policy.config.max_length, source=name)
    check_rows(report, policy.config.max_length)
    return rows, report


def _fit(
    node: NodeContext,
    policy: LoadedPolicy,
    rows: Sequence[TrainingRow],
    report: RowReport,
    spec: SFT | RFT,
    mixture: dict[str, float] | None,
) -> Outcome:
    run = inputs.execution(node)
    lengths = [r.length for r in rows]
    sets = [r.source for r in rows]
    plan = batch_plan(lengths, spec.batch, spec.epochs, node.seed, sets=sets, weights=mixture)
    learner = Learner(
        policy.model,
        spec.optimizer,
        len(plan),
        precision=inputs.precision(node, "precision"),
        micro_batch_tokens=run.micro_batch_tokens,
        device=inputs.device(node),
    )
    done = fit_supervised(learner, rows, plan, loss_for(spec), spec.aggregation, hooks=inputs.hooks(node))
    inputs.save_result(node, policy, learner, list(rows))
    write_json(node.out / "rows.json", report.to_json() | {"fit": _fit_json(done)})
    metrics: dict[str, float | None] = {"loss": done.last_loss, "first_loss": done.first_loss, "rows": float(len(rows))}
    notes = [*inputs.precision_notes(node), *report.sentences(), *done.notes]
    return Outcome(metrics=metrics, cost={"steps": float(done.updates), "tokens": float(done.tokens)}, notes=notes)


def _fit_json(done: FitReport) -> dict[str, Any]:
    return {
        "steps": done.steps,
        "updates": done.updates,
        "tokens": done.tokens,
        "trained_tokens": done.trained_tokens,
        "first_loss": done.first_loss,
        "last_loss": done.last_loss,
    }
