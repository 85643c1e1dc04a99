"""Who asks which teachers, and for which signal."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specs.positions import KeyPath, listed
from specs.program import Program
from specs.routing import LADDER, Signal, Taught


@dataclass(frozen=True, slots=True)
class Finest:
    """What the teachers are asked for to which one rule sends problems, and why it is nothing finer."""

    place: str
    """The rule, as `routing[0]`; empty where the stage names its teachers itself, or there is only one."""
    teachers: tuple[str, ...]
    signal: Signal | None
    """None where there is none that all of them give and the stage can use."""
    lacking: tuple[str, ...] = ()
    """A sentence for each finer signal that the stage could use and some of them do not give."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The signals that a stage learns from, by the rules that it asks by."""

    rules: tuple[Finest, ...]

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Return the signals of all rules, finest first; none where a rule has none."""
        found = {rule.signal for rule in self.rules}
        return () if None in found else tuple(s for s in LADDER if s in found)

    @property
    def signal(self) -> Signal | None:
        """Return the one signal of all rules; None where one has none, or two have different ones."""
        return self.signals[0] if len(self.signals) == 1 else None

    @property
    def teachers(self) -> tuple[str, ...]:
        """Return the teachers of all rules, each once."""
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.teachers))

    def downgrades(self, signal: Signal | None = None) -> list[str]:
        """Return a sentence for each finer signal that a rule's teachers do not give, with the rule where there are several.

        Of all rules, or of those that come to a signal.
        """
        several = len(self.rules) > 1
        own = [rule for rule in self.rules if signal in (None, rule.signal)]
        return [f"{rule.place}: {text}" if several else text for rule in own for text in rule.lacking]


def named(program: Program, learner: Any) -> dict[str, float]:
    """Return the teachers that a learner names, or that the routing has for any problem, with their weights."""
    return {name: w for _, weights in _asked_by(program, learner) for name, w in weights.items()}


def _asked_by(program: Program, learner: Any) -> list[tuple[str, dict[str, float]]]:
    """Return the rules that a learner asks by: their places, and their teachers with their weights."""
    if learner.teachers is not None:
        return [("", dict(learner.teachers))]
    if not program.routing and len(program.teachers) == 1:
        return [("", dict.fromkeys(program.teachers, 1.0))]
    return [(f"routing[{i}]", dict(rule.teachers)) for i, rule in enumerate(program.routing) if rule.teachers]


def usable(learner: Any) -> tuple[Signal, ...]:
    """Return the signals that a learner may take, finest first."""
    return learner.usable if isinstance(learner, Taught) else ("logprobs",)


def choice(program: Program, learner: Any) -> Choice:
    """Return the finest signal that the learner can use and all teachers give to whom a rule sends problems, by rule."""
    wanted = sorted(usable(learner), key=LADDER.index)
    return Choice(tuple(_finest(program, wanted, *rule) for rule in _asked_by(program, learner)))


def _finest(program: Program, wanted: Sequence[Signal], place: str, names: Iterable[str]) -> Finest:
    teachers = tuple(t for t in names if t in program.teachers)
    told: list[str] = []
    for signal in wanted:
        lacking = [t for t in teachers if signal not in program.teachers[t].gives]
        if teachers and not lacking:
            return Finest(place, teachers, signal, tuple(told))
        told += [f"{signal} is not given by {listed(lacking)}"] if lacking else []
    return Finest(place, teachers, None, tuple(told))


def learners(program: Program) -> Iterator[tuple[KeyPath, Any]]:
    """Yield whatever learns from teachers of the roster, with its place: algorithms, and terms beside them."""
    stages: list[tuple[KeyPath, Any]] = [(("stages", i), s) for i, s in enumerate(program.stages)]
    if program.flywheel is not None:
        rounds = program.flywheel.round.stages
        stages += [(("flywheel", "round", "stages", i), s) for i, s in enumerate(rounds)]
    for path, stage in stages:
        if hasattr(stage.algorithm, "teachers"):
            yield (*path, "algorithm"), stage.algorithm
        term = getattr(stage.algorithm, "distill", None)
        if term is not None and hasattr(term, "teachers"):
            yield (*path, "algorithm", "distill"), term


def used_teachers(program: Program, part: str | None = None) -> list[str]:
    """Return the teachers that something asks, members of ensembles among them, in the roster's order.

    With `part`, a key of the program, only what stands there asks.
    """
    asking = [learner for path, learner in learners(program) if part in (None, path[0])]
    used = {name for learner in asking for name in named(program, learner)}
    for name in list(used):
        teacher = program.teachers.get(name)
        if teacher is not None and teacher.kind == "ensemble":
            used |= set(teacher.members)
    return [name for name in program.teachers if name in used]


def measured(program: Program) -> dict[str, list[str]]:
    """Return the sets on which teachers' own success is measured, by the name of the policy that each is there.

    Those that a stage asks: they are measured beside it, and a gate may read of them.
    """
    roster: dict[str, Any] = dict(program.teachers)
    asked = [(name, roster[name]) for name in used_teachers(program, "stages")]
    return {acting_name(n): list(t.evaluate) for n, t in asked if getattr(t, "evaluate", None)}


def acting_name(teacher: str) -> str:
    """Return the name of a teacher that acts, among those of policies: of evaluations, and of a gate's baseline."""
    return f"teacher-{teacher}"


def teachers_data(program: Program) -> list[str]:
    """Return the data sets that teachers are trained on, of those that something asks."""
    found = [program.teachers[name] for name in used_teachers(program)]
    return list(dict.fromkeys(name for t in found if t.kind == "trained" for name in t.reads))
