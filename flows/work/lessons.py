"""Bodies of stages that learn from a teacher's words: the rollouts it is asked about, what is taken from its answers, and
the training on corrections, lists and feedback. `teach` stands between them; pairs train as those of `pairs` do."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs, training
from flows.work.lines import read_rows, write_rows
from specs.errors import DataError, TrainingError
from specs.ladder import Actions, Corrections, Critique, Draws, Fit, Listwise, Ranking, Rubric, Scoring
from specs.records import Problem, TeacherSignal, Trajectory, signal_from
from specs.supervised import SFT, SupervisedBatch
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, write_shards
from tasks.files import write_json
from tasks.learning.algorithms import grpo, sft, soft_label
from tasks.learning.batching import Aggregation
from tasks.learning.rows import TrainingRow, rows_from
from tasks.loops import feedback, lists, teacher_words
from tasks.loops.batches import batch_plan
from tasks.loops.collect import Draw, collect, cut_notes, drift_notes
from tasks.loops.fit import FitReport, fit_supervised
from tasks.loops.order import ProblemOrder
from tasks.loops.rollout_ledger import RolloutLedger
from tasks.loops.state_calls import states_of
from tasks.loops.updates import logprob_gap
from tasks.policy.store import LoadedPolicy, save_policy
from tasks.teachers.scorecard import usage
from tasks.tensors import Loss


def rollouts(node: NodeContext) -> Outcome:
    """Roll out and judge what the teacher is asked about; writes `trajectories/` and `rollouts.json`."""
    spec = Draws.model_validate(node.params["draws"])
    policy = inputs.start_policy(node)
    arena, _ = inputs.arena(node, policy)
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    draw = Draw(spec.samples, spec.temperature, derive(node.seed, "rollouts"), "lessons")
    store = RolloutLedger(node.checkpoints / "rollouts.jsonl")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    found = collect(arena, order.draw(spec.problems or order.size), draw, stop=node.stop, store=store, progress=tell)
    cut = cut_notes(found.trajectories, spec, f"stage {node.id}")
    write_shards(node.out / "trajectories", found.trajectories)
    valid = [t for t in found.trajectories if t.success is not None]
    success = sum(bool(t.success) for t in valid) / len(valid) if valid else None
    count = len(found.trajectories)
    write_json(node.out / "rollouts.json", {"rollouts": count, "success": success, "invalid": found.invalid})
    notes = [*inputs.empty_notes(node), *cut, *drift_notes(found.trajectories)]
    if spec.problems and spec.problems > order.size:
        notes.append(f"problems is {spec.problems}, but there are only {order.size}; all were used")
    notes += store.notes()
    return Outcome(
        metrics={"success": success, "invalid": found.invalid / max(1, count)},
        cost={"rollouts": float(count), "tokens": float(found.policy_tokens)},
        notes=notes,
    )


def take(node: NodeContext) -> Outcome:
    """Make examples and pairs of what the teacher said; writes `trajectories/`, `pairs.jsonl` and `lessons.json`."""
    policy = inputs.start_policy(node)
    own = {t.id: t for t in read_shards(node.inputs["rollouts"] / "trajectories")}
    made, written = teacher_words.Taken(), list[Trajectory]()
    parts = _parts(node, list(own.values()))
    for part in parts:
        if part.signal == "sample":
            arena, _ = inputs.arena(node, policy)
            keep = Corrections.model_validate(part.rule).keep
            found = teacher_words.corrections(part.said, own, _problems(node), arena, policy.config.max_length, keep)
            paired = {p.rejected for p in found.pairs}
            written += [*found.trajectories, *(t for t in own.values() if t.id in paired)]
        else:
            found = teacher_words.ordered(part.said, own, Ranking.model_validate(part.rule))
            written += found.trajectories
        made.add(found)
    write_shards(node.out / "trajectories", written)
    write_rows(node.out / "pairs.jsonl", made.pairs)
    write_json(node.out / "lessons.json", made.to_json())
    figures = made.to_json()
    return Outcome(
        metrics={"pairs": float(len(made.pairs)), "order_dependent": figures["order_dependent"]},
        notes=made.sentences() + _used(node, [s for part in parts for s in part.said], made.used),
    )


def corrected(node: NodeContext) -> Outcome:
    """Train on verified corrections; writes `policy/` and `rows.json`."""
    spec = Corrections.model_validate(node.params["rule"])
    policy = inputs.start_policy(node)
    chosen = {line["chosen"] for line in read_rows(node.inputs["lessons"] / "pairs.jsonl")}
    made = [t for t in read_shards(node.inputs["lessons"] / "trajectories") if t.id in chosen]
    rows, report = rows_from(made, max_length=policy.config.max_length, source="corrections")
    if not spec.kept_turns:
        rows = _teachers_part(rows, {t.id: t for t in made})
    fit = _Fit(node, policy, rows, [[i] for i in range(len(rows))], report.sentences())
    return fit.run(partial(sft.loss, spec=SFT(type="sft")), "token")


def _teachers_part(rows: Sequence[TrainingRow], by_id: dict[str, Trajectory]) -> list[TrainingRow]:
    """Return the rows in which the turns alone train that the teacher wrote."""
    kept: list[TrainingRow] = []
    for row in rows:
        trajectory = by_id[row.trajectory]
        start = trajectory.turns[trajectory.sampling["kept_turns"]].start
        kept.append(replace(row, mask=[m and t >= start for t, m in enumerate(row.mask)]))
    return kept


def listwise(node: NodeContext) -> Outcome:
    """Draw the policy's candidates to the teacher's scores; writes `policy/` and `rows.json`."""
    policy, rule = inputs.start_policy(node), node.params["rule"]
    drawn = list(read_shards(node.inputs["rollouts"] / "trajectories"))
    longest, said = policy.config.max_length, _signals(node)
    if node.params["signal"] == "action":
        actions = Actions.model_validate(rule)
        arena, _ = inputs.arena(node, policy)
        made = lists.action_lists(said, {t.id: t for t in drawn}, _problems(node), arena, actions, longest)
        spec = actions.listwise if actions.learn == "listwise" else None
    else:
        spec = Listwise.model_validate(rule["listwise"])
        made = lists.trajectory_lists(said, drawn, Rubric.model_validate(rule["rubric"]), spec, longest)
    notes = made.sentences() + _used(node, said, made.used)
    fit = _Fit(node, policy, made.rows, made.spans, notes, reference=spec is not None and spec.utility == "ratio")
    if spec is None:
        return fit.run(partial(sft.loss, spec=SFT(type="sft")), lists.MEAN)
    return fit.run(partial(soft_label.loss, spec=spec), lists.MEAN)


def practised(node: NodeContext) -> Outcome:
    """Train by a policy gradient on scores or critiques; writes `policy/` and `rows.json`."""
    policy = inputs.start_policy(node)
    drawn = list(read_shards(node.inputs["rollouts"] / "trajectories"))
    fit, samples = Fit.model_validate(node.params["algorithm"]), int(node.params["draws"]["samples"])
    made, longest = feedback.Feedback(), policy.config.max_length
    kind = Scoring if node.params["signal"] == "score" else Critique
    spec = feedback.grpo_of(kind.model_validate(node.params["rule"]).practice, fit, samples)
    parts = _parts(node, drawn)
    for part in parts:
        if part.signal == "score":
            found = feedback.from_scores(part.said, part.drawn, Scoring.model_validate(part.rule), spec, longest)
        else:
            rule = Critique.model_validate(part.rule)
            found = feedback.from_critiques(part.said, part.drawn, rule, spec, longest)
            if rule.correction_coef:
                arena, _ = inputs.arena(node, policy)
                states = states_of({t.id: t for t in part.drawn}, _problems(node), arena)
                feedback.add_right_calls(found, part.said, states, rule.correction_coef, longest)
        made.add(found)
    of = {t.id: t.problem_id for t in drawn}
    spans: dict[str, list[int]] = {}
    for i, row in enumerate(made.rows):
        spans.setdefault(of[row.trajectory], []).append(i)
    notes = made.sentences() + _used(node, [s for part in parts for s in part.said], made.used)
    run = _Fit(node, policy, made.rows, list(spans.values()), notes, reference=spec.kl_coef > 0)
    run.on_policy = True
    done = run.run(partial(grpo.loss, spec=spec), "token")
    done.metrics |= made.figures
    return done


class _Fit:
    """Training on units of rows (examples, lists, the rollouts of a problem), so many units a step."""

    on_policy = False
    """The rows are the policy's own: trainer and sampler must agree on them."""

    def __init__(
        self, node: NodeContext, policy: LoadedPolicy, rows: list[TrainingRow], units: list[list[int]],
        notes: list[str], *, reference: bool = False,
    ) -> None:  # fmt: skip
        self.node, self.policy, self.rows, self.units = node, policy, rows, units
        self.notes, self.reference = notes, reference
        self.spec = Fit.model_validate(node.params["algorithm"])

    def run(self, loss: Loss, mean: Aggregation) -> Outcome:
        """Train, write the policy, and say what came of it."""
        node, spec = self.node, self.spec
        if len(self.units) < max(1, spec.at_least):
            return self._handed_on()
        lengths = [max(self.rows[i].length for i in unit) for unit in self.units]
        order = batch_plan(lengths, SupervisedBatch(rows=spec.per_step), spec.epochs, node.seed)
        plan = [[i for unit in step for i in self.units[unit]] for step in order]
        learner = training.learner_for(node, self.policy, spec.optimizer, len(plan))
        if self.on_policy or self.reference:
            self._ask_start(learner.logprobs(self.rows))
        done = fit_supervised(learner, self.rows, plan, loss, mean, hooks=inputs.hooks(node))
        inputs.save_result(node, self.policy, learner, self.rows)
        write_json(node.out / "rows.json", self._json(done))
        metrics: dict[str, float | None] = {
            "loss": done.last_loss, "first_loss": done.first_loss, "units": float(len(self.units)), **done.metrics,
        }  # fmt: skip
        notes = [*inputs.precision_notes(node), *self.notes, *done.notes]
        return Outcome(metrics=metrics, cost={"steps": float(done.updates), "tokens": float(done.tokens)}, notes=notes)

    def _handed_on(self) -> Outcome:
        """Hand the policy on where the stage allows it; else say why there is too little."""
        node, least = self.node, self.spec.at_least
        reasons = "; ".join(self.notes) or "the teacher was asked nothing"
        if len(self.units) < least:
            raise TrainingError(
                f"stage {node.id}: {len(self.units)} are left to train on, expected at_least {least} ({reasons}). Ways "
                "out: more problems or samples, another signal, or at_least: 0, which hands the policy on as it is"
            )
        save_policy(self.policy, node.out / "policy")
        return Outcome(
            notes=["there is nothing to train on, and at_least is 0: the policy is handed on as it is", reasons]
        )

    def _ask_start(self, found: list[list[float]]) -> None:
        gap = logprob_gap(self.rows, found) if self.on_policy else 0.0
        if gap > feedback.MAX_GAP:
            raise TrainingError(
                f"stage {self.node.id}: the trainer's and the sampler's logprobs of the rollouts differ by {gap:.4f} nats "
                f"a token, expected at most {feedback.MAX_GAP:g}: weights, tokenizer, temperature or precision differ "
                "between them"
            )
        for row, values in zip(self.rows, found, strict=True):
            if row.sampler_logprobs is None:  # not the policy's own: its ratio is to the start
                row.sampler_logprobs = values
            row.reference_logprobs = values if self.reference else None

    def _json(self, done: FitReport) -> dict[str, Any]:
        tokens, trained = sum(len(r.ids) for r in self.rows), sum(r.trained for r in self.rows)
        source = {"rows": len(self.rows), "tokens": tokens, "trained": trained}
        share = round(trained / tokens, 6) if tokens else 0.0
        fit = ("steps", "updates", "tokens", "trained_tokens", "first_loss", "last_loss")
        return {
            "sources": {self.node.params["signal"]: source | {"trained_share": share}},
            "units": len(self.units),
            "fit": {name: getattr(done, name) for name in fit},
            "figures": done.metrics,
        }


@dataclass(frozen=True, slots=True)
class _Part:
    """What one signal of a stage is about; a stage has several where rules of the routing come to several."""

    signal: str
    rule: dict[str, Any]
    said: list[TeacherSignal]
    drawn: list[Trajectory]
    """The rollouts of its problems."""


def _parts(node: NodeContext, drawn: list[Trajectory]) -> list[_Part]:
    rules = {node.params["signal"]: node.params["rule"]} | node.params.get("beside", {})
    parts: list[_Part] = []
    for signal, rule in rules.items():
        source = "teach" if signal == node.params["signal"] else f"teach.{signal}"
        mine = drawn
        if len(rules) > 1:
            told = json.loads((node.inputs[source] / "signals.json").read_text(encoding="utf-8"))
            mine = [t for t in drawn if t.problem_id in set(told["problems"])]
        parts.append(_Part(signal, rule, _signals(node, source), mine))
    return parts


def _used(node: NodeContext, signals: Sequence[TeacherSignal], used: set[str]) -> list[str]:
    """Note beside the output what was learnt from each teacher, and return it in words."""
    told = usage(signals, used)
    (node.out / "notes").mkdir(exist_ok=True)
    write_json(node.out / "notes" / "used.json", told)
    return [
        f"learnt from {card['used']} of {card['answered']} answers of {name}"
        + (f", ${card['usd_per_used']:.4f} each" if card["usd_per_used"] else "")
        for name, card in told.items()
    ]


def _signals(node: NodeContext, source: str = "teach") -> list[TeacherSignal]:
    path = node.inputs[source] / "signals.jsonl"
    try:
        return [signal_from(line) for line in read_rows(path)]
    except TypeError as e:
        raise DataError(f"{path}: holds a signal that cannot be read ({e}); ask again: run the teach node anew") from e


def _problems(node: NodeContext) -> dict[str, Problem]:
    return {p.id: p for some in inputs.problem_sets(node).values() for p in some}
