"""Checks of stages that learn from a teacher's words: settings that would not be read, scores that would outweigh success."""

from specs.checks import Checks
from specs.dominance import dominance_of
from specs.ladder import ActionDistill, Fit, FromTeacher, Practice
from specs.positions import KeyPath
from specs.routing import Signal
from specs.teacher_references import choice, learners

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


def _from_teacher(c: Checks, path: KeyPath, spec: FromTeacher) -> None:
    if spec.signal != "auto" and spec.goal != "imitate":
        c.wrong((*path, "goal"), f"has no effect with signal: {spec.signal}; it decides what signal: auto takes")
    signal = choice(c.program, spec).signal
    if signal is None:
        return  # told elsewhere
    for name, reader in _OF.items():
        if reader != signal and getattr(spec, name) != FromTeacher.model_fields[name].default:
            c.wrong((*path, name), f"is not read: the stage learns from {signal}, and {name} is about {reader}")
    if signal in ("rank", "score") and spec.samples < 2:
        c.wrong((*path, "samples"), f"found {spec.samples}, expected at least 2: {signal} compares within a problem")
    _by_signal(c, path, spec, signal)


def _by_signal(c: Checks, path: KeyPath, spec: FromTeacher, signal: Signal) -> None:
    match signal:
        case "score":
            _outcome_stays_in_charge(c, (*path, "scoring", "weight"), spec.scoring.weight)
            _practice(c, (*path, "scoring", "practice"), spec.scoring.practice, spec.samples)
        case "critique":
            _practice(c, (*path, "critique", "practice"), spec.critique.practice, spec.samples)
        case "action":
            _actions(c, (*path, "actions"), spec)
        case "logprobs" if spec.at_least != Fit.model_fields["at_least"].default:
            c.odd((*path, "at_least"), "is not read with probabilities: every step draws rollouts of its own")
        case "sample" if spec.corrections.learn == "sft" and spec.corrections.prefer != type(spec.corrections)().prefer:
            c.wrong((*path, "corrections", "prefer"), "is not read with learn: sft; write learn: pairs or both")
        case "sample" if spec.corrections.learn == "pairs" and spec.corrections.kept_turns:
            c.wrong((*path, "corrections", "kept_turns"), "is not read with learn: pairs; write learn: sft or both")
        case _:
            pass


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
    if rule.learn == "best" and rule.listwise != type(rule)().listwise:
        c.wrong((*path, "listwise"), "is not read with learn: best; write learn: listwise")
    if rule.learn == "listwise" and rule.least_score != type(rule)().least_score:
        c.wrong(
            (*path, "least_score"),
            "is not read with learn: listwise, where low scores teach as well; write learn: best",
        )
    if rule.choose == "disagreed" and spec.samples < 2:
        c.wrong((*path, "choose"), "found disagreed, but one sample disagrees with nothing; write choose: early")
