"""Stages that learn from a teacher's words: rollouts, questions, what is taken from the answers, training. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from flows.distilling import add_opd
from flows.graph import Graph, dump
from flows.nodes import Json, node_seed
from flows.teaching import add_teach
from specs.distillation import OPD
from specs.errors import ProgramError
from specs.ladder import ActionDistill, Asking, Draws, Fit, FromTeacher, Preferring, Rubric, SoftLabel, TaughtAlgorithm
from specs.preference import DPO, IPO, ORPO, Pairing
from specs.routing import Signal
from specs.stages import Stage
from specs.teacher_choice import choice

_PLAIN: Json = {"form": "score", "samples": 1, "from_tools": 0}


@dataclass(frozen=True, slots=True)
class Learning:
    """What a stage does with its signal."""

    asking: Asking
    rule: Json
    """What the bodies read: the settings of that signal."""
    kind: str
    """Node kind that trains."""
    taken: bool = False
    """Whether examples and pairs are made first."""
    prefer: Preferring | None = None
    """Loss on the pairs; None where there are none."""


def add_taught(graph: Graph, stage: Stage, spec: TaughtAlgorithm, policy: str) -> str:
    """Add the rounds of a stage and return the node of its policy."""
    signals = signals_of(graph, stage, spec)
    if signals == ("logprobs",):
        return add_opd(graph, stage.model_copy(update={"algorithm": as_opd(graph, stage, spec)}), policy)
    learnings = [learning_of(spec, signal) for signal in signals]
    for number in range(1, spec.rounds + 1):
        policy = _round(graph, stage, spec, learnings, policy, number)
    return policy


def signals_of(graph: Graph, stage: Stage, spec: TaughtAlgorithm) -> tuple[Signal, ...]:
    """Return the signals that a stage learns from by one loss. ProgramError where its teachers give none, or others."""
    found = choice(graph.program, spec).signals
    if not found or spec.apart(found) is not None:
        raise ProgramError(
            f"{graph.program.program}: stage {stage.id}: its teachers give nothing of {', '.join(spec.usable)} that one loss "
            "trains on; see `tutelage check`"
        )
    return found


def as_opd(graph: Graph, stage: Stage, spec: TaughtAlgorithm) -> OPD:
    """Return the on-policy distillation that stands for a stage whose teachers show probabilities: as many rollouts."""
    assert isinstance(spec, FromTeacher), "other types learn from words"
    known = graph.sizes.count(stage.data)
    problems = min((n for n in (spec.problems, known) if n), default=spec.per_step)
    steps = max(1, round(spec.rounds * spec.epochs * problems / spec.per_step))
    return OPD(
        type="opd", teachers=spec.teachers, over=spec.over, group_size=spec.samples, temperature=spec.temperature,
        problems_per_step=spec.per_step, steps=steps, optimizer=spec.optimizer, max_truncated=spec.max_truncated,
    )  # fmt: skip


def learning_of(spec: TaughtAlgorithm, signal: Signal) -> Learning:
    """Return what a stage asks and does."""
    match spec:
        case SoftLabel():
            rubric = spec.rubric
            asking = Asking(signal="score", dimensions=rubric.asked, scale=rubric.scale)
            return Learning(asking, {"rubric": _weights(rubric), "listwise": dump(spec.listwise)}, "train.listwise")
        case ActionDistill():
            return _actions(spec)
        case FromTeacher():
            return _of_signal(spec, signal)


def _of_signal(spec: FromTeacher, signal: Signal) -> Learning:
    match signal:
        case "action":
            return _actions(spec)
        case "sample":
            rule = spec.corrections
            pairs = rule.prefer if rule.learn != "sft" else None
            kind = "train.corrected" if rule.learn != "pairs" else "train.preference"
            asking = Asking(signal="sample", per_problem=rule.per_problem, samples=rule.samples)
            several = {"samples": rule.samples, "keep": rule.keep} if rule.samples > 1 else {}
            return Learning(asking, {"kept_turns": rule.kept_turns, **several}, kind, taken=True, prefer=pairs)
        case "rank":
            rule = spec.ranking
            asking = Asking(signal="rank", swaps=rule.swaps)
            kept = {"choose": rule.choose, "swaps": rule.swaps}
            return Learning(asking, kept, "train.preference", taken=True, prefer=rule.prefer)
        case "score":
            rubric = spec.scoring.rubric
            asking = Asking(signal="score", dimensions=rubric.asked, scale=rubric.scale)
            return Learning(asking, dump(spec.scoring) | {"rubric": _weights(rubric)}, "train.practised")
        case "critique":
            rule = {k: v for k, v in dump(spec.critique).items() if v or k != "correction_coef"}
            return Learning(Asking(signal="critique"), rule, "train.practised")
        case "logprobs":
            raise AssertionError("probabilities are no words")


def _actions(spec: FromTeacher | ActionDistill) -> Learning:
    rule = spec.actions
    asking = Asking(
        signal="action", states=rule.states, choose=rule.choose, candidates=rule.candidates,
        from_tools=rule.from_tools, form=rule.form, swaps=rule.swaps,
    )  # fmt: skip
    kept = {"learn": rule.learn, "least_score": rule.least_score, "listwise": dump(rule.listwise)}
    order = {"form": rule.form, "swaps": rule.swaps} if rule.form == "rank" else {}
    return Learning(asking, kept | order, "train.listwise")


def _weights(rubric: Rubric) -> Json:
    """Return what of a rubric is read when the answers are there."""
    return {k: v for k, v in dump(rubric).items() if k != "about"}


def _question(asking: Asking) -> Json:
    """Return what is asked, as params: what is asked in its plain form does not name the others."""
    return {k: v for k, v in dump(asking).items() if k not in _PLAIN or v != _PLAIN[k]}


def _round(
    graph: Graph, stage: Stage, spec: TaughtAlgorithm, learnings: Sequence[Learning], policy: str, number: int
) -> str:  # fmt: skip
    """Add one round. Stages that start alike share their rollouts: the seed is the part's.

    Where rules of the routing come to several signals, each is asked for by a node of its own and one loss trains on all.
    """
    learning = learnings[0]
    part, name = graph.part, graph.part.name(stage.id)
    draws = {field: getattr(spec, field) for field in Draws.model_fields}
    fit: Json = {"algorithm": {k: dump(spec)[k] for k in Fit.model_fields}, "draws": draws}
    inputs = graph.stage_inputs(stage, policy, apart=part.apart)
    seed = node_seed(graph.program.seed, part.name(f"rollouts{number}"))
    judged = graph.judged(stage)
    rolled = graph.add(f"{name}.rollouts{number}", "rollouts", judged | {"draws": draws}, inputs, seed=seed)
    drawn = {"problems": spec.problems, "samples": spec.samples}
    given = {"rollouts": rolled}
    for one in learnings:
        signal = one.asking.signal
        node_id = f"{name}.teach{number}" + (f".{signal}" if len(learnings) > 1 else "")
        asked = add_teach(graph, stage, node_id, rolled, signal, _question(one.asking), drawn)
        given |= {"teach" if one is learning else f"teach.{signal}": asked}
    rule: Json = {"signal": learning.asking.signal, "rule": learning.rule}
    if len(learnings) > 1:
        rule |= {"beside": {one.asking.signal: one.rule for one in learnings[1:]}}
    end = name if number == spec.rounds else f"{name}.fit{number}"
    through = "policy" if part.number else None
    if not learning.taken:
        return graph.add(end, learning.kind, judged | fit | rule, inputs | given, passthrough=through)
    taken = graph.add(f"{name}.lessons{number}", "lessons", judged | fit | rule, inputs | given)
    if learning.kind == "train.corrected":
        own = {"policy": graph.policy, "data": judged["data"], **fit, **rule}
        into = end if learning.prefer is None else f"{name}.imitate{number}"
        policy = graph.add(into, "train.corrected", own, {"policy": policy, "lessons": taken}, passthrough=through)
    if learning.prefer is None:
        return policy
    pairs = {"algorithm": dump(preferring(learning.prefer, spec)), "policy": graph.policy, "data": judged["data"]}
    return graph.add(end, "train.preference", pairs, {"policy": policy, "pairs": taken}, passthrough=through)


def preferring(rule: Preferring, spec: TaughtAlgorithm) -> DPO | IPO | ORPO:
    """Return the algorithm on pairs that a teacher's pairs train by."""
    pairing = Pairing(
        samples=max(2, spec.samples), problems=spec.problems, temperature=spec.temperature, at_least=spec.at_least,
        choose="all",
    )  # fmt: skip
    match rule.loss:
        case "dpo":
            return DPO(
                type="dpo", beta=rule.strength, nll_coef=rule.nll_coef, pairing=pairing, epochs=spec.epochs,
                pairs_per_step=spec.per_step, optimizer=spec.optimizer,
            )  # fmt: skip
        case "ipo":
            return IPO(
                type="ipo", tau=rule.strength, pairing=pairing, epochs=spec.epochs, pairs_per_step=spec.per_step,
                optimizer=spec.optimizer,
            )  # fmt: skip
        case "orpo":
            return ORPO(
                type="orpo", odds_coef=rule.strength, pairing=pairing, epochs=spec.epochs,
                pairs_per_step=spec.per_step, optimizer=spec.optimizer,
            )  # fmt: skip
