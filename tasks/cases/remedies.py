"""Remedies: which confirmed case gives what to which pool.

A case's own trajectory never trains, nor does its own problem because of it: what trains are siblings and successes.
A failure on a training source puts one more sibling aside for the regression pool, which never trains.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from specs.flywheel import AskPerson, Cause, HardPool, Prefer, Remedy, Repair, StopForRewardFix, Ticket
from specs.records import BadCase, Demonstration, Problem, Trajectory
from tasks.cases.siblings import SiblingMaker

NOT_THE_POLICYS: tuple[Cause, ...] = ("infrastructure", "environment", "verifier", "data")
"""Causes that no training mends; such a case gives no sibling, whatever the remedy says."""


@dataclass(slots=True)
class Ask:
    """A case that waits for somebody."""

    case: str
    do: str
    """`confirm | ticket | ask_person | stop_for_reward_fix`."""
    cause: Cause
    reason: str


@dataclass(slots=True)
class Remedied:
    """What the remedies gave."""

    repaired: list[Demonstration] = field(default_factory=list[Demonstration])
    pairs: list[Demonstration] = field(default_factory=list[Demonstration])
    hard: list[Problem] = field(default_factory=list[Problem])
    regression: list[Problem] = field(default_factory=list[Problem])
    asks: list[Ask] = field(default_factory=list[Ask])
    counts: Counter[str] = field(default_factory=Counter[str])
    """Remedy -> cases; also `beyond_quota` and `no_sibling`."""
    given: dict[str, str] = field(default_factory=dict[str, str])
    """Case -> pool that got a sibling of it. Whether anything trains on that pool is not known here."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Which remedy a cause has, and how many siblings a case gives."""

    remedies: Mapping[Cause, Remedy]
    default: Remedy
    per_case: int
    hold_back: bool = True
    """Whether cases of training sources put a sibling aside for the regression pool."""

    def remedy(self, cause: Cause) -> Remedy:
        """Return the remedy of a cause."""
        return self.remedies.get(cause, self.default)


def apply(cases: Sequence[BadCase], problems: Mapping[str, Problem], rules: Rules, maker: SiblingMaker) -> Remedied:
    """Apply the remedies and write into each case what was decided. `problems` are those of the cases, by id."""
    found = Remedied()
    able: list[BadCase] = []
    for case in cases:
        remedy = rules.remedy(case.cause)
        case.remedy = remedy.do
        found.counts[remedy.do] += 1
        ask = _ask(case, remedy, known=case.problem_id in problems)
        if ask is None:
            able.append(case)
        else:
            found.asks.append(ask)
    _hold_back(found, cases, problems, rules, maker)
    _fill(found, able, problems, rules, maker)
    return found


def _ask(case: BadCase, remedy: Remedy, *, known: bool) -> Ask | None:
    """Return who has to look at a case before anything comes of it; None where a sibling may train."""
    if case.status != "confirmed":
        return Ask(case.id, "confirm", case.cause, "no deterministic verifier confirmed it")
    match remedy:
        case Ticket() | AskPerson() | StopForRewardFix():
            return Ask(case.id, remedy.do, case.cause, f"the remedy of {case.cause} is {remedy.do}")
        case Repair() | Prefer() | HardPool():
            if case.cause in NOT_THE_POLICYS:
                return Ask(case.id, "ticket", case.cause, f"{case.cause} is no failure that training mends")
            if not known:
                return Ask(case.id, "ticket", case.cause, "its problem is gone: no sibling can be made of it")
            return None
        case _:
            assert_never(remedy)


def _hold_back(
    found: Remedied, cases: Iterable[BadCase], problems: Mapping[str, Problem], rules: Rules, maker: SiblingMaker
) -> None:
    """Put a sibling aside for each confirmed case of a training source, before any sibling trains."""
    if not rules.hold_back:
        return
    for case in cases:
        held = case.status == "confirmed" and case.role == "train" and case.cause not in NOT_THE_POLICYS
        if not held or case.problem_id not in problems:
            continue
        made = maker.make(problems[case.problem_id], case.cause, held=True)
        if made is None:
            found.counts["no_sibling"] += 1
        else:
            case.regression = made.problem.id
            found.regression.append(made.problem)


def _fill(
    found: Remedied, cases: Sequence[BadCase], problems: Mapping[str, Problem], rules: Rules, maker: SiblingMaker
) -> None:
    """Give each case its first sibling, then each its second, until the quota of its cause is used up."""
    given: Counter[Cause] = Counter()
    for number in range(rules.per_case):
        for case in cases:
            remedy = rules.remedy(case.cause)
            assert isinstance(remedy, Repair | Prefer | HardPool), "others have been set aside"
            if given[case.cause] >= remedy.quota:
                found.counts["beyond_quota"] += number == 0
                continue
            made = maker.make(problems[case.problem_id], case.cause)
            if made is None:
                found.counts["no_sibling"] += 1
                continue
            given[case.cause] += 1
            if isinstance(remedy, Repair):
                found.repaired.append(made)
                found.given[case.id] = "repaired"
            elif isinstance(remedy, Prefer):
                found.pairs.append(made)
                found.given[case.id] = "pairs"
            else:
                found.hard.append(made.problem)
                found.given[case.id] = "hard"


def successes(trajectories: Iterable[Trajectory], size: int) -> tuple[list[Trajectory], Counter[str]]:
    """Return at most `size` verified trajectories, each distinct, problem after problem; and why others are not."""
    dropped: Counter[str] = Counter()
    by_problem: dict[str, list[Trajectory]] = {}
    seen: set[tuple[int, ...]] = set()
    for trajectory in trajectories:
        reason = _no_example(trajectory) or ("repeated" if tuple(trajectory.ids) in seen else None)
        if reason is not None:
            dropped[reason] += 1
            continue
        seen.add(tuple(trajectory.ids))
        by_problem.setdefault(trajectory.problem_id, []).append(trajectory)
    ranked = [t for rank in range(max(map(len, by_problem.values()), default=0)) for t in _ranked(by_problem, rank)]
    dropped["beyond_size"] += max(0, len(ranked) - size)
    return ranked[:size], +dropped


def _ranked(by_problem: Mapping[str, Sequence[Trajectory]], rank: int) -> list[Trajectory]:
    return [members[rank] for members in by_problem.values() if rank < len(members)]


def _no_example(trajectory: Trajectory) -> str | None:
    """Return why a trajectory is no positive example; None where it is one."""
    if trajectory.status == "infrastructure":
        return "infrastructure"
    if trajectory.success is None or trajectory.reward is None:
        return "invalid"
    if not trajectory.success:
        return "failed"
    return None if trajectory.status == "finished" else "unfinished"
