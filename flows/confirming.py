"""What people said of cases: confirmed as failures of the policy, or dismissed as mistakes of a verifier. Torch-free.

Answers are kept as the pool `answered` of a program; a program that is resolved afterwards knows them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows import pools
from flows.leases import short_lock
from specs.flywheel import Cause
from specs.records import BadCase, case_from, to_dict

DISMISSED: Cause = "verifier"
"""Cause of a case that a person dismissed: what is wrong is the verdict, and no training mends that."""


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """What a person said of one case, with the case as it stood then."""

    case: BadCase
    confirmed: bool
    by: str
    reason: str
    at: str
    cause: Cause | None = None
    """The cause that the person names in the place of the one that was found."""


def answers(home: Path, program: str) -> list[CaseAnswer]:
    """Return the newest answer for each case."""
    found = pools.newest(home, program, pools.ANSWERED)
    return [] if found is None else [answer_from(r) for r in pools.records(home, found)]


def answer_from(row: dict[str, Any]) -> CaseAnswer:
    """Return the answer that a published row stands for."""
    known = {k: v for k, v in row.items() if k not in ("id", "type")}
    return CaseAnswer(**{**known, "case": case_from(row["case"])})


def give(home: Path, case: BadCase, *, confirmed: bool, by: str, reason: str, cause: Cause | None = None) -> CaseAnswer:
    """Keep an answer, in the place of an earlier one for the same case, and return it."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    answer = CaseAnswer(replace(case), confirmed, by, reason, at, cause)

    def with_it(given: list[CaseAnswer]) -> list[CaseAnswer]:
        return [*(a for a in given if a.case.id != case.id), answer]

    change(home, case.program, with_it, {"answered": case.id})
    return answer


def note_lives(home: Path, program: str, ledger: Iterable[BadCase]) -> None:
    """Let the answers know what became of their cases, so that one that trained is not brought in again."""
    known = {c.id: c for c in ledger}

    def aged(given: list[CaseAnswer]) -> list[CaseAnswer]:
        return [replace(a, case=known.get(a.case.id, a.case)) for a in given]

    change(home, program, aged, {"program": program, "lives": True})


def change(
    home: Path, program: str, made: Callable[[list[CaseAnswer]], list[CaseAnswer]], about: dict[str, Any]
) -> None:
    """Publish what `made` makes of the newest answers, unless there are none. Nobody else changes them meanwhile."""
    with short_lock(home / "pools" / ".answers.lock"):
        given = made(answers(home, program))
        rows = [{"id": a.case.id, "type": a.case.problem_type, **asdict(a), "case": to_dict(a.case)} for a in given]
        if rows:
            pools.publish(home, program, pools.ANSWERED, rows, about)


def answered(cases: Iterable[BadCase], given: Iterable[CaseAnswer]) -> list[BadCase]:
    """Return the cases as people answered them, each changed in place."""
    by_id = {a.case.id: a for a in given}
    found = list(cases)
    for case in found:
        if (answer := by_id.get(case.id)) is not None:
            _apply(case, answer)
    return found


def brought_in(
    cases: Sequence[BadCase], given: Iterable[CaseAnswer], sets: Iterable[str], number: int
) -> list[BadCase]:
    """Return confirmed cases that were not found again and that no stage trained on yet, for round `number`.

    They were suspected when they were found, so that nothing came of them then.
    """
    known, asked = {c.id for c in cases}, set(sets)
    waiting = [a for a in given if a.confirmed and a.case.life == "open"]
    return [_apply(replace(a.case, round=number), a) for a in waiting if a.case.id not in known and a.case.set in asked]


def _apply(case: BadCase, answer: CaseAnswer) -> BadCase:
    case.evidence = case.evidence | {"said": {"by": answer.by, "reason": answer.reason, "at": answer.at}}
    case.cause = answer.cause or case.cause
    if answer.confirmed:
        case.status, case.confirmed_by = "confirmed", case.confirmed_by or answer.by
    else:
        case.status, case.confirmed_by, case.cause, case.confidence = "suspected", None, DISMISSED, 1.0
    return case
