"""Which teacher is asked about a problem. Pure: where rules name problems alone, the same one goes to the same teacher, whatever
else there is."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specs.errors import TeacherError
from specs.records import Problem
from specs.routing import HistoryWeights, Route
from specs.when import ROUTING_NAMES, Expression, parse, problem_values

_NAMED = 20
Tally = Mapping[tuple[str, str], tuple[int, int]]
"""(teacher, problem type) -> (answers that verifiers agreed with, answers that they could judge)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, its condition parsed."""

    number: int
    route: Route
    when: Expression | None


@dataclass(frozen=True, slots=True)
class Place:
    """What a rule decides about: a problem, or a state in which it is asked."""

    id: str
    problem: Problem
    values: Mapping[str, Any]
    """What conditions are evaluated with."""


@dataclass(slots=True)
class Routed:
    """Where problems, or states, go."""

    teacher: dict[str, str] = field(default_factory=dict[str, str])
    """Place -> teacher."""
    rules: Counter[int] = field(default_factory=Counter[int])
    """Rule -> places."""
    by_default: Counter[str] = field(default_factory=Counter[str])
    """Problem type -> places that no rule with a condition held for."""

    def count(self, rule: Rule, kind: str) -> None:
        """Count a place, whose problem is of a type, for the rule that holds there."""
        self.rules[rule.number] += 1
        if rule.when is None and rule.number > 0:
            self.by_default[kind] += 1

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return plain data: places by rule, and of the last rule by problem type."""
        rules = {str(i): n for i, n in sorted(self.rules.items())}
        return {"rules": rules, "by_default": dict(sorted(self.by_default.items()))}

    def sentences(self, idle: Sequence[str]) -> list[str]:
        """Return what a person should know: what no rule was written for, and the teachers that nothing went to."""
        found: list[str] = []
        if self.by_default:
            kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.by_default.items()))
            found.append(f"routing: the last rule decided for {kinds}")
        return [*found, *([f"no problem went to {', '.join(idle)}"] if idle else [])]


def rules_of(routing: Sequence[Route]) -> list[Rule]:
    """Return the rules with their conditions parsed."""
    return [Rule(i, r, None if r.when is None else parse(r.when, ROUTING_NAMES)) for i, r in enumerate(routing)]


def rule_for(values: Mapping[str, Any], rules: Sequence[Rule]) -> Rule:
    """Return the first rule that holds of what is known; the last one holds always."""
    return next(r for r in rules if r.when is None or r.when.evaluate(values))


def route(places: Sequence[Place], routing: Sequence[Route], draw: Callable[[str], float], tally: Tally) -> Routed:
    """Return the teacher of each place, drawn by weight: `draw` gives a number in [0, 1) for its problem's id.

    TeacherError, before anything is asked, with every problem that the last rule rejects.
    """
    rules, found, refused = rules_of(routing), Routed(), list[Problem]()
    for place in places:
        rule, problem = rule_for(place.values, rules), place.problem
        found.count(rule, problem.type)
        if rule.route.reject:
            refused.append(problem)
        else:
            weights = weights_of(rule.route, problem.type, tally)
            found.teacher[place.id] = drawn(weights, draw(problem.id))
    none_refused(list({p.id: p for p in refused}.values()), len({p.problem.id for p in places}))
    return found


def require_teachers(problems: Sequence[Problem], rules: Sequence[Rule]) -> None:
    """Raise TeacherError with every problem that the last rule rejects."""
    refused = [p for p in problems if rule_for(problem_values(p), rules).route.reject]
    none_refused(refused, len(problems))


def none_refused(refused: Sequence[Problem], count: int) -> None:
    """Raise TeacherError with every problem, of so many, that no rule is for."""
    if refused:
        named = ", ".join(f"{p.id} ({p.type})" for p in refused[:_NAMED])
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        raise TeacherError(
            f"routing: no rule is for {len(refused)} of {count} problems: {named}{more}; nothing was asked. "
            "Write a rule whose `when` holds for them, or give the last rule teachers instead of reject"
        )


def weights_of(rule: Route, kind: str, tally: Tally) -> dict[str, float]:
    """Return the shares of a rule's teachers for a problem type, moved by how often verifiers agreed with them."""
    weights = dict(rule.teachers)
    if rule.history is not None:
        weights = {n: w * _record(n, kind, tally, rule.history) for n, w in weights.items()}
    total = sum(weights.values())
    shares = {n: w / total for n, w in weights.items()}
    if rule.history is None:
        return shares
    return _at_least(shares, min(rule.history.least, 1 / len(shares)))


def _at_least(shares: Mapping[str, float], least: float) -> dict[str, float]:
    """Return the shares with none below `least`: what the small ones are given, the others give by their size."""
    found = dict(shares)
    low: set[str] = set()
    while fresh := {n for n, s in found.items() if n not in low and s < least}:
        low |= fresh
        rest = sum(s for n, s in shares.items() if n not in low)
        found = {n: least if n in low else s / rest * (1 - least * len(low)) for n, s in shares.items()}
    return found


def _record(teacher: str, kind: str, tally: Tally, spec: HistoryWeights) -> float:
    agreed, judged = tally.get((teacher, kind), (0, 0))
    return ((agreed + 1) / (judged + 2)) ** spec.kappa


def drawn(weights: Mapping[str, float], number: float) -> str:
    """Return the teacher in whose share a number in [0, 1) lies."""
    names, reached = list(weights), 0.0
    for name in names:
        reached += weights[name]
        if number < reached:
            return name
    return names[-1]
