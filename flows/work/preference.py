"""Bodies of preference nodes: pairs of the policy's own rollouts, and training on pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows.context import NodeContext, Outcome
from flows.work import inputs
from flows.work.lines import read_rows, write_rows
from specs.algorithms import DPO, IPO, KTO, PairAlgorithm, Pairing, Preference, SupervisedBatch
from specs.errors import DataError, TrainingError
from specs.records import Trajectory, pair_from
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, write_shards
from tasks.files import write_json
from tasks.learning.algorithms import kto, loss_for
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.loops.batches import batch_plan
from tasks.loops.collect import Draw, collect, drift_notes
from tasks.loops.fit import FitReport, fit_supervised
from tasks.loops.order import ProblemOrder
from tasks.loops.pairing import PairReport, mismatched, pair_rows, pair_up, require_pairs
from tasks.loops.rollout_store import RolloutStore
from tasks.policy.store import save_policy


def pairs(node: NodeContext) -> Outcome:
    """Roll out, judge and pair; writes `trajectories/`, `pairs.jsonl` and `pairs.json`."""
    spec = Pairing.model_validate(node.params["pairing"])
    policy = inputs.start_policy(node)
    arena, _ = inputs.arena(node, policy)
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    draw = Draw(spec.samples, spec.temperature, derive(node.seed, "rollouts"), "pairs")
    store = RolloutStore(node.checkpoints / "rollouts")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    problems = order.draw(spec.problems or order.size)
    found = collect(arena, problems, draw, stop=node.stop, store=store, progress=tell)
    report = pair_up(found.trajectories, spec)
    pair_rows(report, {t.id: t for t in found.trajectories}, policy.config.max_length)
    require_pairs(report, spec, node.id)
    used = {side for p in report.pairs for side in (p.chosen, p.rejected)}
    write_shards(node.out / "trajectories", [t for t in found.trajectories if t.id in used])
    write_rows(node.out / "pairs.jsonl", report.pairs)
    write_json(node.out / "pairs.json", report.to_json())
    notes = [*inputs.empty_notes(node), *report.sentences(), *drift_notes(found.trajectories)]
    if spec.problems and spec.problems > order.size:
        notes.append(f"pairing.problems is {spec.problems}, but there are only {order.size}; all were used")
    notes += [f"part {name} of earlier rollouts was damaged and drawn again" for name in store.damaged]
    valid = [t for t in found.trajectories if t.success is not None]
    return Outcome(
        metrics={
            "success": sum(bool(t.success) for t in valid) / len(valid) if valid else None,
            "pairs": float(len(report.pairs)),
            "invalid": found.invalid / len(found.trajectories),
        },
        cost={"rollouts": float(len(found.trajectories)), "tokens": float(found.policy_tokens)},
        notes=notes,
    )


def train(node: NodeContext) -> Outcome:
    """Train on pairs; writes `policy/` and `rows.json`. The reference is the policy that the stage starts from."""
    spec = _spec(node)
    policy = inputs.start_policy(node)
    report, trajectories = _read_pairs(node.inputs["pairs"])
    rows = pair_rows(report, trajectories, policy.config.max_length)
    require_pairs(report, spec.pairing, node.id)
    if not rows:
        save_policy(policy, node.out / "policy")
        return Outcome(
            notes=["there is no pair, and at_least is 0: the policy is handed on as it is", *report.sentences()]
        )
    plan = batch_plan(
        [a.length + b.length for a, b in rows], SupervisedBatch(rows=spec.pairs_per_step), spec.epochs, node.seed
    )
    flat = [row for both in rows for row in both]
    problems = [p.problem_id for p in report.pairs for _ in (p.chosen, p.rejected)]
    learner = Learner(
        policy.model,
        spec.optimizer,
        len(plan),
        precision=inputs.precision(node, "precision"),
        micro_batch_tokens=inputs.execution(node).micro_batch_tokens,
        device=inputs.device(node),
    )
    hooks = inputs.hooks(node)
    if isinstance(spec, DPO | IPO | KTO):
        _ask_reference(learner, flat)
    drift = _Drift(learner, flat, problems, policy.config.max_length) if isinstance(spec, KTO) else None
    if drift is not None:
        hooks.before_step = drift.before_step
    steps = [[row for pair in step for row in (2 * pair, 2 * pair + 1)] for step in plan]
    done = fit_supervised(learner, flat, steps, loss_for(spec), "absolute_sequence", hooks=hooks)
    if not done.updates:
        raise TrainingError(f"stage {node.id}: none of {done.steps} steps had a gradient; lower beta or raise tau")
    inputs.save_result(node, policy, learner, flat)
    write_json(node.out / "rows.json", _rows_json(report, flat, done))
    notes = [*inputs.precision_notes(node), *report.sentences(), *_notes(done), *done.notes]
    if len(rows) < spec.pairs_per_step:
        notes.append(f"{len(rows)} pairs are fewer than pairs_per_step ({spec.pairs_per_step}): a step takes them all")
    if drift is not None and drift.none:
        notes.append("all pairs are of one problem, so nothing is mismatched: KTO's baseline is 0")
    return Outcome(
        metrics={"loss": done.last_loss, "first_loss": done.first_loss, "pairs": float(len(rows)), **_figures(done)},
        cost={"steps": float(done.updates), "tokens": float(done.tokens)},
        notes=notes,
    )


class _Drift:
    """The baseline of KTO: before each step, how far the policy has drifted on mismatched prompts and completions."""

    def __init__(self, learner: Learner, rows: Sequence[TrainingRow], problems: Sequence[str], max_length: int) -> None:
        self._learner = learner
        self._rows = rows
        self._mixed = mismatched(rows, problems, max_length)
        self.none = not self._mixed
        _ask_reference(learner, list(self._mixed.values()))

    def before_step(self, indices: Sequence[int]) -> None:
        """Set the baseline of the step's rows."""
        mixed = [self._mixed[i] for i in indices if i in self._mixed]
        now = [sum(values) for values in self._learner.logprobs(mixed)]
        before = [sum(row.reference_logprobs or []) for row in mixed]
        z = kto.baseline([a - b for a, b in zip(now, before, strict=True)])
        for i in indices:
            self._rows[i].baseline = z


def _spec(node: NodeContext) -> Preference:
    adapter: TypeAdapter[Preference] = TypeAdapter(Preference)
    spec = adapter.validate_python(node.params["algorithm"])
    assert isinstance(spec, PairAlgorithm), "a preference node has an algorithm on pairs"
    return spec


def _ask_reference(learner: Learner, rows: Sequence[TrainingRow]) -> None:
    """Keep the logprobs of the policy before its first step, once, so that no second model is held."""
    for row, values in zip(rows, learner.logprobs(rows), strict=True):
        row.reference_logprobs = values


def _read_pairs(folder: Path) -> tuple[PairReport, dict[str, Trajectory]]:
    path = folder / "pairs.jsonl"
    try:
        found = [pair_from(line) for line in read_rows(path)]
    except TypeError as e:
        raise DataError(f"{path}: holds a pair that cannot be read ({e}); make the pairs again") from e
    report = PairReport(pairs=found, problems=len({p.problem_id for p in found}))
    return report, {t.id: t for t in read_shards(folder / "trajectories")}


def _rows_json(report: PairReport, rows: Sequence[TrainingRow], done: FitReport) -> dict[str, Any]:
    sources = {}
    for name, side in (("chosen", True), ("rejected", False)):
        of_side = [r for r in rows if r.preferred is side]
        tokens, trained = sum(len(r.ids) for r in of_side), sum(r.trained for r in of_side)
        share = round(trained / tokens, 6)
        sources[name] = {"rows": len(of_side), "tokens": tokens, "trained": trained, "trained_share": share}
    fit = ("steps", "updates", "tokens", "trained_tokens", "first_loss", "last_loss")
    return {
        "sources": sources,
        "dropped": report.dropped,
        "cut": report.cut,
        "fit": {name: getattr(done, name) for name in fit},
        "figures": done.metrics,
    }


def _figures(done: FitReport) -> dict[str, float | None]:
    names = ("accuracy", "margin", "chosen_shift", "rejected_shift", "log_odds_ratio", "chosen_nll", "baseline")
    return {n: done.metrics[n] for n in names if n in done.metrics}


def _notes(done: FitReport) -> list[str]:
    chosen, rejected = done.metrics.get("chosen_shift", 0.0), done.metrics.get("rejected_shift", 0.0)
    if chosen >= 0.0 or rejected >= 0.0:
        return []
    return [
        f"what was chosen became less likely too (log-ratio {chosen:+.3f}, of what was rejected {rejected:+.3f}); raise "
        "beta, which holds the policy closer to its start, lower the learning rate, or give dpo an nll_coef"
    ]
