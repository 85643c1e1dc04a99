"""Bodies of preference nodes: pairs of the policy's own rollouts, and training on pairs or single trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows.context import NodeContext, Outcome
from flows.work import inputs, labels, training
from flows.work.lines import read_rows, write_rows
from specs.errors import DataError
from specs.preference import DPO, IPO, KTO, PairAlgorithm, Pairing, Preference
from specs.records import Trajectory, pair_from
from specs.supervised import SupervisedBatch
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, write_shards
from tasks.files import write_json
from tasks.learning.algorithms import kto, loss_for
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.loops.batches import batch_plan
from tasks.loops.collect import Collected, Draw, collect, cut_notes, drift_notes
from tasks.loops.fit import FitReport, fit_supervised
from tasks.loops.labelling import LabelReport, label_rows, require_labels
from tasks.loops.order import ProblemOrder
from tasks.loops.pairing import PairReport, mismatched, pair_rows, pair_up, require_pairs
from tasks.loops.rollout_ledger import RolloutLedger
from tasks.policy.store import save_policy


def pairs(node: NodeContext) -> Outcome:
    """Roll out, judge and pair; writes `trajectories/`, `pairs.jsonl` and `pairs.json`."""
    spec = Pairing.model_validate(node.params["pairing"])
    policy = inputs.start_policy(node)
    arena, _ = inputs.arena(node, policy)
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    draw = Draw(spec.samples, spec.temperature, derive(node.seed, "rollouts"), "pairs")
    store = RolloutLedger(node.checkpoints / "rollouts.jsonl")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    problems = order.draw(spec.problems or order.size)
    found = collect(arena, problems, draw, stop=node.stop, store=store, progress=tell)
    cut = cut_notes(found.trajectories, spec, f"stage {node.id}")
    tried = {t.problem_id for t in found.trajectories}
    solved = {t.problem_id for t in found.trajectories if t.success}
    shown = [t for t in labels.solutions(node, arena, policy, solved) if t.problem_id in tried]
    if spec.choose == "alone":
        done = labels.label(node, spec, [*found.trajectories, *shown], policy.config.max_length)
        done.notes += [f"{len(shown)} trajectories are solutions of the pool"] if shown else []
    else:
        done = _pair(node, spec, found, shown, policy.config.max_length)
    notes = [*inputs.empty_notes(node), *done.notes, *cut, *drift_notes(found.trajectories)]
    if spec.problems and spec.problems > order.size:
        notes.append(f"pairing.problems is {spec.problems}, but there are only {order.size}; all were used")
    notes += store.notes()
    valid = [t for t in found.trajectories if t.success is not None]
    return Outcome(
        metrics={
            "success": sum(bool(t.success) for t in valid) / len(valid) if valid else None,
            **done.metrics,
            "invalid": found.invalid / len(found.trajectories),
        },
        cost={"rollouts": float(len(found.trajectories)), "tokens": float(found.policy_tokens)},
        notes=notes,
    )


def _pair(node: NodeContext, spec: Pairing, found: Collected, shown: Sequence[Trajectory], max_length: int) -> Outcome:
    """Pair the rollouts, and where a round brought solutions, failures with these; writes what `pairs` says."""
    usable = [*found.trajectories, *shown]
    report = pair_up(usable, spec)
    for pair in report.pairs:
        pair.by = "solution" if pair.chosen in {t.id for t in shown} else pair.by
    pair_rows(report, {t.id: t for t in usable}, max_length)
    require_pairs(report, spec, node.id)
    used = {side for p in report.pairs for side in (p.chosen, p.rejected)}
    write_shards(node.out / "trajectories", [t for t in usable if t.id in used])
    write_rows(node.out / "pairs.jsonl", report.pairs)
    write_json(node.out / "pairs.json", report.to_json())
    by_solution = sum(pair.by == "solution" for pair in report.pairs)
    notes = [f"{by_solution} pairs have a solution of the pool as the chosen side"] if by_solution else []
    return Outcome(metrics={"pairs": float(len(report.pairs))}, notes=[*notes, *report.sentences()])


@dataclass(frozen=True, slots=True)
class _Given:
    """What a stage trains on: rows, the problem of each, and by step the rows of each unit that is drawn as one."""

    report: PairReport | LabelReport
    rows: list[TrainingRow]
    problems: list[str]
    units: list[list[int]]
    per_step: int

    def sentences(self) -> list[str]:
        """Return what a person should know of it."""
        notes = self.report.sentences()
        if len(self.units) < self.per_step:
            what = "pairs" if isinstance(self.report, PairReport) else "trajectories"
            notes.append(f"{len(self.units)} {what} are fewer than one step takes ({self.per_step}): it takes them all")
        return notes


def _given(node: NodeContext, spec: Preference, max_length: int) -> _Given:
    folder = node.inputs["pairs"]
    known = {t.id: t for t in read_shards(folder / "trajectories")}
    if spec.pairing.choose == "alone":
        report = labels.read_labels(folder)
        rows = label_rows(report, known, max_length)
        require_labels(report, spec.pairing, node.id)
        problems = [one.problem_id for one in report.labels]
        return _Given(report, rows, problems, [[i] for i in range(len(rows))], 2 * spec.pairs_per_step)
    pairs = _read_pairs(folder)
    both = pair_rows(pairs, known, max_length)
    require_pairs(pairs, spec.pairing, node.id)
    problems = [p.problem_id for p in pairs.pairs for _ in (p.chosen, p.rejected)]
    units = [[2 * i, 2 * i + 1] for i in range(len(both))]
    return _Given(pairs, [row for sides in both for row in sides], problems, units, spec.pairs_per_step)


def train(node: NodeContext) -> Outcome:
    """Train on pairs; writes `policy/` and `rows.json`. The reference is the policy that the stage starts from."""
    spec = _spec(node)
    policy = inputs.start_policy(node)
    given = _given(node, spec, policy.config.max_length)
    if not given.rows:
        save_policy(policy, node.out / "policy")
        return Outcome(
            notes=["there is no pair, and at_least is 0: the policy is handed on as it is", *given.report.sentences()]
        )
    flat = given.rows
    lengths = [sum(flat[i].length for i in unit) for unit in given.units]
    plan = batch_plan(lengths, SupervisedBatch(rows=given.per_step), spec.epochs, node.seed)
    learner = training.learner_for(node, policy, spec.optimizer, len(plan))
    hooks = inputs.hooks(node)
    if isinstance(spec, DPO | IPO | KTO):
        _ask_reference(learner, flat)
    drift = _Drift(learner, flat, given.problems, policy.config.max_length) if isinstance(spec, KTO) else None
    if drift is not None:
        hooks.before_step = drift.before_step
    steps = [[row for unit in step for row in given.units[unit]] for step in plan]
    done = fit_supervised(learner, flat, steps, loss_for(spec), "absolute_sequence", hooks=hooks)
    inputs.save_result(node, policy, learner, flat)
    write_json(node.out / "rows.json", _rows_json(given.report, flat, done))
    notes = [*inputs.precision_notes(node), *given.sentences(), *_notes(done), *done.notes]
    if drift is not None and drift.none:
        notes.append("all are of one problem, so nothing is mismatched: KTO's baseline is 0")
    count = "pairs" if isinstance(given.report, PairReport) else "trajectories"
    return Outcome(
        metrics={
            "loss": done.last_loss,
            "first_loss": done.first_loss,
            count: float(len(given.units)),
            **_figures(done),
        },
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


def _read_pairs(folder: Path) -> PairReport:
    path = folder / "pairs.jsonl"
    try:
        found = [pair_from(line) for line in read_rows(path)]
    except TypeError as e:
        raise DataError(f"{path}: holds a pair that cannot be read ({e}); make the pairs again") from e
    return PairReport(pairs=found, problems=len({p.problem_id for p in found}))


def _rows_json(report: PairReport | LabelReport, rows: Sequence[TrainingRow], done: FitReport) -> dict[str, Any]:
    fit = ("steps", "updates", "tokens", "trained_tokens", "first_loss", "last_loss")
    return {
        "sources": labels.side_counts(rows),
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
