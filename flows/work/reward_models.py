"""Bodies of reward models: turns and their labels, and the training on pairs or labels."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs, training
from flows.work.lines import read_rows, write_rows
from specs.errors import StateError, TrainingError
from specs.records import pair_from
from specs.reward_models import RewardModel, TurnLabels
from specs.supervised import SupervisedBatch
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, write_shards
from tasks.files import write_json
from tasks.learning.algorithms import loss_for
from tasks.learning.rows import TrainingRow
from tasks.learning.values import ValueLearner
from tasks.loops.batches import batch_plan
from tasks.loops.collect import Draw, collect, cut_notes, drift_notes
from tasks.loops.fit import fit_supervised
from tasks.loops.order import ProblemOrder
from tasks.loops.reward_rows import (
    held_out,
    label_turns,
    pair_order,
    require_order,
    side_rows,
    turn_order,
    turn_rows,
)
from tasks.loops.rollout_ledger import RolloutLedger
from tasks.policy.reward_model import Scale, load_reward_model, save_reward_model
from tasks.policy.store import LoadedPolicy

_TOLERANCE = 1e-3
"""Largest difference of a number between the model that was trained and the one that was saved."""
_CHECKED = 8


def turns(node: NodeContext) -> Outcome:
    """Roll out, judge and label turns; writes `trajectories/`, `labels.jsonl` and `labels.json`."""
    spec = TurnLabels.model_validate(node.params["turns"])
    policy = inputs.start_policy(node)
    arena, _ = inputs.arena(node, policy)
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    draw = Draw(spec.samples, spec.temperature, derive(node.seed, "rollouts"), "turns")
    store = RolloutLedger(node.checkpoints / "rollouts.jsonl")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    problems = order.draw(spec.problems or order.size)
    found = collect(arena, problems, draw, stop=node.stop, store=store, progress=tell)
    cut = cut_notes(found.trajectories, spec, f"stage {node.id}")
    labelled = label_turns(found.trajectories, spec)
    values = [y for given in labelled.labels.values() for y in given]
    if spec.at_least and (labelled.turns < spec.at_least or len(set(values)) < 2):
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(labelled.dropped.items())) or "nothing left out"
        raise TrainingError(
            f"stage {node.id}: {labelled.turns} turns are labelled, {len(set(values))} different labels ({reasons}); "
            f"expected at least turns.at_least, {spec.at_least}, and two labels. Draw more, or train the policy first"
        )
    write_shards(node.out / "trajectories", [t for t in found.trajectories if t.id in labelled.labels])
    write_rows(node.out / "labels.jsonl", [{"trajectory": t, "labels": y} for t, y in labelled.labels.items()])
    write_json(node.out / "labels.json", {"turns": labelled.turns, "mean": _mean(values), "dropped": labelled.dropped})
    notes = [*inputs.empty_notes(node), *cut, *drift_notes(found.trajectories)]
    notes += [f"{n} trajectories have no labels: {reason}" for reason, n in sorted(labelled.dropped.items())]
    if spec.problems and spec.problems > order.size:
        notes.append(f"turns.problems is {spec.problems}, but there are only {order.size}; all were used")
    notes += store.notes()
    return Outcome(
        metrics={"labelled_turns": float(labelled.turns), "label_mean": _mean(values)},
        cost={"rollouts": float(len(found.trajectories)), "tokens": float(found.policy_tokens)},
        notes=notes,
    )


@dataclass(slots=True)
class _Rows:
    """Rows that train and rows that are held out; of pairs both sides, the chosen one first."""

    train: list[TrainingRow]
    held_out: list[TrainingRow]
    dropped: dict[str, int] = field(default_factory=dict)


def train(node: NodeContext) -> Outcome:
    """Train a reward model on pairs or labelled turns; writes `reward/` and `reward.json`. The policy is not changed."""
    spec = RewardModel.model_validate(node.params["algorithm"])
    policy = inputs.start_policy(node)
    rows = _of_pairs(node, spec, policy) if spec.learns == "pairs" else _of_turns(node, spec, policy)
    if not rows.train:
        return _untrained(node, spec, policy, rows)
    plan, steps = _plan(rows.train, spec, node.seed)
    learner = training.value_learner_for(node, policy, spec.optimizer, len(plan))
    mean = "absolute_sequence" if spec.learns == "pairs" else "token"
    done = fit_supervised(learner, rows.train, steps, loss_for(spec), mean, hooks=inputs.hooks(node))
    measure = pair_order if spec.learns == "pairs" else turn_order
    order, own = (measure(some, learner.values(some)) for some in (rows.held_out, rows.train))
    what = "pairs" if spec.learns == "pairs" else "comparisons of a better and a worse turn"
    require_order(order, spec.least_accuracy, node.id, what)
    about = {
        "learns": spec.learns,
        "least_accuracy": spec.least_accuracy,
        "held_out": order.to_json(),
        "trained_on": own.to_json(),
        "steps": done.steps,
    }
    _save(node, policy, learner, rows, about)
    write_json(
        node.out / "reward.json",
        about | {"dropped": rows.dropped, "first_loss": done.first_loss, "last_loss": done.last_loss},
    )
    notes = [
        f"on {order.count} held-out {what} it is right {order.share:.0%} of the time ({own.share:.0%} where it trained)"
    ]
    notes += [f"{n} left out: {reason}" for reason, n in sorted(rows.dropped.items())]
    return Outcome(
        metrics={
            "accuracy": order.share,
            "train_accuracy": own.share,
            "loss": done.last_loss,
            "first_loss": done.first_loss,
        },
        cost={"steps": float(done.updates), "tokens": float(done.tokens)},
        notes=[*inputs.precision_notes(node), *notes, *done.notes],
    )


def _untrained(node: NodeContext, spec: RewardModel, policy: LoadedPolicy, rows: _Rows) -> Outcome:
    """Write a model that gives everything the same number where `at_least` is 0; TrainingError where it is not."""
    asked = spec.pairing.at_least if spec.learns == "pairs" else spec.turns.at_least
    if asked:
        held = f"{len(rows.held_out)} held out" if rows.held_out else "none held out"
        reasons = ", ".join([f"{n} {reason}" for reason, n in sorted(rows.dropped.items())] + [held])
        raise TrainingError(
            f"stage {node.id}: no trajectory is left to train on ({reasons}), expected some of two problems at least; "
            "draw more problems, or train the policy first"
        )
    order = pair_order([], [])
    about = {"learns": spec.learns, "least_accuracy": spec.least_accuracy, "held_out": order.to_json(), "steps": 0}
    _save(node, policy, training.value_learner_for(node, policy, spec.optimizer, 1), rows, about)
    write_json(node.out / "reward.json", about | {"dropped": rows.dropped})
    told = "there is nothing to train on, and at_least is 0: the model gives every trajectory the same number"
    return Outcome(metrics={"accuracy": order.share}, notes=[told])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _plan(rows: Sequence[TrainingRow], spec: RewardModel, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the plan over units (pairs, or single rows) and the rows of each of its steps."""
    both = 2 if spec.learns == "pairs" else 1
    lengths = [sum(row.length for row in rows[i : i + both]) for i in range(0, len(rows), both)]
    plan = batch_plan(lengths, SupervisedBatch(rows=max(1, spec.rows_per_step // both)), spec.epochs, seed)
    return plan, [[row for unit in step for row in range(both * unit, both * unit + both)] for step in plan]


def _of_pairs(node: NodeContext, spec: RewardModel, policy: LoadedPolicy) -> _Rows:
    folder = node.inputs["pairs"]
    pairs = [pair_from(line) for line in read_rows(folder / "pairs.jsonl")]
    trajectories = {t.id: t for t in read_shards(folder / "trajectories")}
    away = held_out((p.problem_id for p in pairs), spec.held_out, node.seed)
    apart = [[p for p in pairs if (p.problem_id in away) is held] for held in (False, True)]
    (own, dropped), (other, more) = (side_rows(some, trajectories, policy.config.max_length) for some in apart)
    return _Rows(own, other, _sum(dropped, more))


def _of_turns(node: NodeContext, spec: RewardModel, policy: LoadedPolicy) -> _Rows:
    folder = node.inputs["turns"]
    labels: dict[str, list[float]] = {r["trajectory"]: r["labels"] for r in read_rows(folder / "labels.jsonl")}
    found = list(read_shards(folder / "trajectories"))
    rows, dropped = turn_rows(found, labels, policy.config.max_length)
    away = held_out((row.source for row in rows), spec.held_out, node.seed)
    return _Rows([r for r in rows if r.source not in away], [r for r in rows if r.source in away], dropped)


def _sum(*counts: dict[str, int]) -> dict[str, int]:
    names = dict.fromkeys(name for some in counts for name in some)
    return {name: sum(some.get(name, 0) for some in counts) for name in names}


def _save(node: NodeContext, policy: LoadedPolicy, learner: ValueLearner, rows: _Rows, about: dict[str, Any]) -> None:
    """Write `out/reward`. StateError where, read again, it gives other numbers than the model that was trained."""
    values = learner.values(rows.train)
    given = [v for row, own in zip(rows.train, values, strict=True) for m, v in zip(row.mask, own, strict=True) if m]
    scale = Scale(fmean(given), max(1e-6, pstdev(given))) if given else Scale()
    folder: Path = node.out / "reward"
    policy.model, head_D, bias = learner.parts()
    save_reward_model(policy, head_D, bias, about, scale, folder)
    read = load_reward_model(folder, inputs.device(node))
    worst = 0.0
    for row in rows.train[:_CHECKED]:
        ends = [t for t, inside in enumerate(row.mask) if inside]
        expected = learner.exact_numbers(row.ids, ends)
        worst = max([worst, *(abs(a - b) for a, b in zip(read.numbers(row.ids, ends), expected, strict=True))])
    if not worst <= _TOLERANCE:
        raise StateError(
            f"{folder}: the saved reward model's numbers differ by up to {worst:.6f} from the trained one's, expected at "
            f"most {_TOLERANCE:g}; it was not handed on. Run the node again"
        )
