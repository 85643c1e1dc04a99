"""Checks of stages that learn from a teacher's words: settings that would not be read, scores that would outweigh success."""

from typing import Any

from specs.checks import Checks
from specs.dominance import dominance_of
from specs.ladder import ActionDistill, Fit, FromTeacher, Practice, Rubric, SoftLabel
from specs.positions import KeyPath, listed
from specs.program import Program
from specs.routing import Signal, Taught
from specs.teacher_choice import choice, learners
from specs.teachers import ScriptedTeacher

_OF: dict[str, Signal] = {
    "corrections": "sample", "ranking": "rank", "scoring": "score", "critique": "critique", "actions": "action",
    "over": "logprobs",
}  # fmt: skip
"""The signal that reads a block of settings."""


def ladder(c: Checks) -> None:
    """Check every stage that learns from a teacher's words."""
    for path, learner in learners(c.program):
        if isinstance(learner, FromTeacher):
            _from_teacher(c, path, learner)
        elif isinstance(learner, ActionDistill):
            _actions(c, (*path, "actions"), learner)
        elif isinstance(learner, SoftLabel):
            _rubric(c, (*path, "rubric"), learner, learner.rubric)


def _from_teacher(c: Checks, path: KeyPath, spec: FromTeacher) -> None:
    if spec.signal != "auto" and spec.goal != "imitate":
        c.wrong((*path, "goal"), f"has no effect with signal: {spec.signal}; it decides what signal: auto takes")
    signals = choice(c.program, spec).signals
    if not signals or spec.apart(signals) is not None:
        return  # told elsewhere
    for name, reader in _OF.items():
        if reader not in signals and getattr(spec, name) != FromTeacher.model_fields[name].default:
            text = f"is not read: the stage learns from {' and '.join(signals)}, and {name} is about {reader}"
            if reader in spec.usable:  # with signal: auto another teacher's name makes it read
                c.odd((*path, name), f"{text}, which its teachers would have to give")
            else:
                c.wrong((*path, name), text)
    for signal in signals:
        if signal in ("rank", "score") and spec.samples < 2:
            text = f"found {spec.samples}, expected at least 2: {signal} compares within a problem"
            c.wrong((*path, "samples"), text)
        _by_signal(c, path, spec, signal)


def _by_signal(c: Checks, path: KeyPath, spec: FromTeacher, signal: Signal) -> None:
    match signal:
        case "score":
            _outcome_stays_in_charge(c, (*path, "scoring", "weight"), spec.scoring.weight)
            _rubric(c, (*path, "scoring", "rubric"), spec, spec.scoring.rubric)
            _practice(c, (*path, "scoring", "practice"), spec.scoring.practice, spec.samples)
        case "critique":
            _practice(c, (*path, "critique", "practice"), spec.critique.practice, spec.samples)
        case "action":
            _actions(c, (*path, "actions"), spec)
        case "sample":
            _corrections(c, (*path, "corrections"), spec)
        case "logprobs" if spec.at_least != Fit.model_fields["at_least"].default:
            c.odd((*path, "at_least"), "is not read with probabilities: every step draws rollouts of its own")
        case _:
            pass


def _corrections(c: Checks, path: KeyPath, spec: FromTeacher) -> None:
    rule, plain = spec.corrections, type(spec.corrections)()
    if rule.learn == "sft" and rule.prefer != plain.prefer:
        c.wrong((*path, "prefer"), "is not read with learn: sft; write learn: pairs or both")
    if rule.learn == "pairs" and rule.kept_turns:
        c.wrong((*path, "kept_turns"), "is not read with learn: pairs; write learn: sft or both")
    if rule.samples == 1:
        if rule.keep != plain.keep:
            c.wrong(
                (*path, "keep"), "is not read with samples: 1; ask for more corrections of a failure, or leave it out"
            )
        return
    rules = [rule for rule in choice(c.program, spec).rules if rule.signal == "sample"]
    teachers = dict.fromkeys(name for rule in rules for name in rule.teachers)
    alike = [name for name in teachers if _always_the_same(c.program, name)]
    text = f"found {rule.samples}, but to the same question {listed(alike)} always gives the same answer"
    if len(alike) == len(teachers):
        scripted = all(getattr(c.program.teachers[name], "kind", None) == "scripted" for name in alike)
        way = "ask one that varies" if scripted else "write a temperature above 0 for it"
        c.wrong((*path, "samples"), f"{text}; {way}, or samples: 1")
    elif alike:
        c.odd((*path, "samples"), text)


def _rubric(c: Checks, path: KeyPath, learner: Taught, rubric: Rubric) -> None:
    """Report dimensions that a scripted teacher, asked by itself or in an ensemble, knows nothing of."""
    asked = [name for rule in choice(c.program, learner).rules if rule.signal == "score" for name in rule.teachers]
    for name in list(asked):
        asked += getattr(c.program.teachers[name], "members", ())
    scripted = [n for n in dict.fromkeys(asked) if getattr(c.program.teachers.get(n), "kind", None) == "scripted"]
    for name in rubric.dimensions if scripted else ():
        if name not in ScriptedTeacher.scores:
            text = f"found {name}, but {listed(scripted)} is scripted and scores {' and '.join(ScriptedTeacher.scores)} alone"
            c.wrong((*path, "dimensions", name), f"{text}; leave it out, or ask a teacher that reads what it means")


def _always_the_same(program: Program, name: str) -> bool:
    """Return whether a teacher answers a question alike, however often it is asked."""
    teacher: Any = program.teachers.get(name)
    if teacher is None or teacher.kind == "ensemble":
        return teacher is not None and all(_always_the_same(program, member) for member in teacher.members)
    return teacher.noise == 0.0 if teacher.kind == "scripted" else getattr(teacher, "temperature", None) == 0.0


def _outcome_stays_in_charge(c: Checks, path: KeyPath, weight: float) -> None:
    if not c.program.reward.outcome:
        return
    proof = dominance_of(c.program)
    room = proof.worst_success - proof.best_failure
    if weight >= room:
        text = f"found {weight:g}, but success and failure are {room:g} apart: {proof.text}; expected less than that"
        c.wrong(path, f"{text}, so that no score makes up for a failure")


def _practice(c: Checks, path: KeyPath, spec: Practice, samples: int) -> None:
    if samples < 2 and spec.scale_rewards != "none":
        c.wrong((*path, "scale_rewards"), "has no effect with one sample; write none, or draw more samples")


def _actions(c: Checks, path: KeyPath, spec: FromTeacher | ActionDistill) -> None:
    rule = spec.actions
    if rule.form == "score" and not rule.swaps:
        c.wrong((*path, "swaps"), "is not read with form: score; write form: rank")
    if rule.learn == "best" and rule.listwise != type(rule)().listwise:
        c.wrong((*path, "listwise"), "is not read with learn: best; write learn: listwise")
    if rule.form == "rank" and rule.least_score != type(rule)().least_score:
        c.wrong((*path, "least_score"), "is not read with form: rank, which has no scale; leave it out")
    if rule.from_tools and rule.learn == "best" and rule.form == "score":
        text = "has no effect with learn: best and form: score, where the call is imitated that the teacher names"
        c.wrong((*path, "from_tools"), f"{text}; write learn: listwise, or leave it out")
    if rule.choose == "disagreed" and spec.samples < 2:
        c.wrong((*path, "choose"), "found disagreed, but one sample disagrees with nothing; write choose: early")
