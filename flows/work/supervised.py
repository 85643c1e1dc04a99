"""Bodies of supervised nodes: SFT on demonstrations, and the two halves of rejection sampling."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs, training
from flows.work.reading import environments, records
from specs.errors import DataError
from specs.records import Demonstration, Trajectory
from specs.supervised import RFT, SFT, RewardWeighted
from tasks.episodes.agents import agent_for
from tasks.episodes.render import render_demonstration
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, told_apart, write_shards
from tasks.files import write_json
from tasks.learning.algorithms import loss_for, reward_weighted
from tasks.learning.rows import RowReport, TrainingRow, behind, check_rows, merge_reports, rows_from
from tasks.loops.batches import batch_plan
from tasks.loops.collect import Collected, Draw, cut_notes, drift_notes
from tasks.loops.collect import collect as collect_rollouts
from tasks.loops.fit import FitReport, fit_supervised
from tasks.loops.order import ProblemOrder
from tasks.loops.rollout_ledger import RolloutLedger
from tasks.loops.selection import Selection, gain, require_positives, select, select_weighted
from tasks.policy.store import LoadedPolicy


def sft(node: NodeContext) -> Outcome:
    """Train on demonstrations and, of pools, on verified trajectories; writes `policy/` and `rows.json`."""
    spec = SFT.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    made = [demonstration_rows(node, name, policy, spec.shown) for name in inputs.filled(node)]
    rows = [row for some, _ in made for row in some]
    return _fit(node, policy, rows, merge_reports(r for _, r in made), spec, inputs.weights(node))


def rft(node: NodeContext) -> Outcome:
    """Train on the trajectories that `collect` selected; writes `policy/` and `rows.json`."""
    spec = RFT.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    rows, report = rows_from(_selected(node), max_length=policy.config.max_length, source="selected")
    check_rows(report, policy.config.max_length)
    return _fit(node, policy, rows, report, spec, None)


def weighted(node: NodeContext) -> Outcome:
    """Train on the trajectories that `collect` kept, by the weight of their reward; writes `policy/` and `rows.json`."""
    spec = RewardWeighted.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    chosen = _selected(node)
    given, bounded = reward_weighted.mean_one([t.reward or 0.0 for t in chosen], [t.problem_id for t in chosen], spec)
    by_id = dict(zip((t.id for t in chosen), given, strict=True))
    rows, report = rows_from(chosen, max_length=policy.config.max_length, source="selected")
    check_rows(report, policy.config.max_length)
    own, parts = [by_id[r.trajectory] for r in rows], [1 / r.contexts for r in rows]
    scaled = reward_weighted.row_weights(own, [r.trained for r in rows], spec, parts)
    for row, weight in zip(rows, scaled, strict=True):
        row.weight = weight
    share = reward_weighted.effective(given) / len(given)
    done = _fit(node, policy, rows, report, spec, None)
    done.metrics["effective_share"] = share
    done.notes.append(f"the weights are worth {share:.0%} of the {len(given)} trajectories")
    if bounded:
        done.notes.append(f"{bounded} weights were above max_weight ({spec.max_weight:g}) and were lowered to it")
    return done


def _selected(node: NodeContext) -> list[Trajectory]:
    folder = node.inputs["collect"]
    selected = set(json.loads((folder / "collect.json").read_text(encoding="utf-8"))["selected"])
    chosen = [t for t in read_shards(folder / "trajectories") if t.id in selected]
    if len(chosen) != len(selected):
        raise DataError(
            f"{folder}: collect.json selects {len(selected)} trajectories, the shards hold {len(chosen)} of them; "
            "run the collect node again"
        )
    return chosen


def collect(node: NodeContext) -> Outcome:
    """Roll out, judge and select; writes `trajectories/` and `collect.json`."""
    kind = RFT if node.params["algorithm"]["type"] == "rft" else RewardWeighted
    spec = kind.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    arena, _ = inputs.arena(node, policy)
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    problems = order.draw(spec.problems or order.size)
    again = [] if node.params["round"] == 1 else [node.params["round"]]  # the same problems, other samples
    draw = Draw(spec.samples, spec.temperature, derive(node.seed, "rollouts", *again), node.id)
    store = RolloutLedger(node.checkpoints / "rollouts.jsonl")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    found = collect_rollouts(arena, problems, draw, stop=node.stop, store=store, progress=tell)
    cut = cut_notes(found.trajectories, spec, f"stage {node.id}")
    if isinstance(spec, RFT):
        chosen = select(found.trajectories, spec)
        goes_on, reason = _goes_on(node, spec, chosen)
    else:
        chosen, goes_on, reason = select_weighted(found.trajectories, spec), True, "there is one round"
    require_positives(chosen, spec, node.id)
    write_shards(node.out / "trajectories", found.trajectories)
    write_json(node.out / "collect.json", chosen.to_json() | {"continue": goes_on, "reason": reason})
    notes = inputs.empty_notes(node)
    notes += [f"{len(chosen.ids)} of {len(found.trajectories)} trajectories selected; left out: {_counts(chosen)}"]
    if spec.problems and spec.problems > order.size:
        notes.append(f"problems is {spec.problems}, but there are only {order.size}; all were used")
    notes += [reason] if "previous" in node.inputs else []
    notes += [*cut, *drift_notes(found.trajectories)]
    notes += store.notes()
    return Outcome(metrics=_collect_metrics(chosen, found), cost=_rollout_cost(found), notes=notes)


def _goes_on(node: NodeContext, spec: RFT, chosen: Selection) -> tuple[bool, str]:
    """Return whether a later round is worth its rollouts, and why: not where the gain is below `min_gain` beyond doubt."""
    if "previous" not in node.inputs:
        return True, "first round"
    before = json.loads((node.inputs["previous"] / "collect.json").read_text(encoding="utf-8"))["pass_rates"]
    found = gain(before, chosen.pass_rates)
    text = (
        f"share of problems with a success: {found.estimate:+.3f} [{found.low:+.3f}, {found.high:+.3f}] on the same "
        f"{found.n:g} problems, min_gain is {spec.min_gain:g}"
    )
    goes_on = found.high >= spec.min_gain
    return goes_on, text if goes_on else f"{text}: later rounds are left out"


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


def demonstration_rows(
    node: NodeContext, name: str, policy: LoadedPolicy, shown: float = 0.0
) -> tuple[list[TrainingRow], RowReport]:
    """Return the rows of a set of demonstrations, rendered with the policy's own tokens, and of a pool's trajectories."""
    agent, worlds = agent_for(inputs.agent_spec(node)), environments(node)
    rendered: list[Trajectory] = []
    for record in records(node, name):
        if not isinstance(record, Demonstration):
            raise DataError(
                f"data {name!r}: holds problems, but sft needs demonstrations; use `kind: demonstrations` or a stage "
                "of type rft or grpo"
            )
        tools = worlds[record.problem.environment].tools(record.problem)
        rendered.append(render_demonstration(record, agent, policy.template, tools))
    rendered += inputs.pool_trajectories(node, name, policy)
    apart = told_apart(name, rendered)
    rows, report = rows_from(apart, max_length=policy.config.max_length, source=name)
    check_rows(report, policy.config.max_length)
    known = {own.id: t for own, t in zip(apart, rendered, strict=True)}
    return (_shown(rows, known, policy, shown, node.seed) if shown else rows), report


def _shown(
    rows: Sequence[TrainingRow], known: Mapping[str, Trajectory], policy: LoadedPolicy, share: float, seed: int
) -> list[TrainingRow]:
    """Put before a share of the rows what their trajectory says, where there is room for it.

    `known`: by the name of a row's trajectory, that trajectory under the name which the draw depends on.
    """
    made: list[TrainingRow] = []
    for row in rows:
        said = known[row.trajectory]
        prefix = policy.template.aside("\n".join(turn.text for turn in said.turns))
        fits = len(prefix) + row.length <= policy.config.max_length
        name = said.id + row.id.removeprefix(row.trajectory)
        chosen = fits and Random(f"{seed}/shown/{name}").random() < share
        made.append(behind(prefix, row) if chosen else row)
    return made


def _fit(
    node: NodeContext,
    policy: LoadedPolicy,
    rows: Sequence[TrainingRow],
    report: RowReport,
    spec: SFT | RFT | RewardWeighted,
    mixture: dict[str, float] | None,
) -> Outcome:
    lengths = [r.length for r in rows]
    sets = [r.source for r in rows]
    plan = batch_plan(lengths, spec.batch, spec.epochs, node.seed, sets=sets, weights=mixture)
    learner = training.learner_for(node, policy, spec.optimizer, len(plan), rounded_logits=True)
    mean = reward_weighted.AGGREGATION[spec.denominator] if isinstance(spec, RewardWeighted) else spec.aggregation
    done = fit_supervised(learner, rows, plan, loss_for(spec), mean, hooks=inputs.hooks(node))
    inputs.save_result(node, policy, learner, list(rows))
    drawn = Counter(sets[i] for step in plan for i in step)
    more = {"drawn": dict(sorted(drawn.items()))} if mixture is not None else {}
    write_json(node.out / "rows.json", report.to_json() | {"fit": _fit_json(done)} | more)
    metrics: dict[str, float | None] = {"loss": done.last_loss, "first_loss": done.first_loss, "rows": float(len(rows))}
    notes = [*report.sentences(), *inputs.precision_notes(node), *inputs.empty_notes(node), *done.notes]
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
