"""How often evaluation sets were asked by gates: each policy asked about is a look, and each look spends alpha.

`programs/<program>/looks.jsonl` has a line for each, written by the gate as it decides and never changed: gate, sets by
the content of their problems, policy, alpha. A set that is declared otherwise and holds the same problems is the same.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.durable import Ledger, sha256_file
from flows.leases import short_lock
from flows.nodes import Node, Plan
from flows.plan import Status
from flows.state import State
from specs.errors import StateError
from tasks.statistics.looks import Asked

Json = dict[str, Any]
RECORDS = "records.jsonl"
_REMEDY = "restore it from a copy, or move it away: looks are then counted from none, and gates pass more easily"
_KINDS = {"gate": str, "sets": dict, "candidate": str, "alpha": float, "look": int}


@dataclass(frozen=True, slots=True)
class Question:
    """What looks are counted for: a gate, and the problems that it asks."""

    gate: str
    others: tuple[str, ...]
    """The program's other gates: claims of their own. What any further gate asked counts, whatever its name was."""
    sets: dict[str, str]
    """Set -> sha256 of its problems; without sets that are empty, or judged by count alone."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a plan knows of the looks of one of its gates."""

    asked: list[Asked] = field(default_factory=list[Asked])
    candidate: str | None = None
    """The policy that it decided about, where it is decided."""
    later: int = 0
    """Looks of this run that come before it."""


def path_of(home: Path, program: str) -> Path:
    """Return the ledger of a program."""
    return home / "programs" / program / "looks.jsonl"


def read(home: Path, program: str) -> list[Json]:
    """Return the looks that a program's gates took, in order. StateError where one cannot be read."""
    path, lines = path_of(home, program), list[Json]()
    for number, line in enumerate(Ledger(path, remedy=_REMEDY), 1):
        whole = all(isinstance(line.get(name), kind) for name, kind in _KINDS.items())
        if not whole or not all(isinstance(digest, str) for digest in line["sets"].values()):
            raise StateError(f"{path}:{number}: damaged record of a look, expected {', '.join(_KINDS)}; {_REMEDY}")
        lines.append(line)
    return lines


def asked(lines: Iterable[Json], question: Question) -> list[Asked]:
    """Return the policies that were asked about on any of these problems, in order, each with the most that it spent."""
    spent: dict[str, float] = {}
    for line in lines:
        if line["gate"] not in question.others and set(line["sets"].values()) & set(question.sets.values()):
            spent[line["candidate"]] = max(line["alpha"], spent.get(line["candidate"], 0.0))
    return [Asked(candidate, alpha) for candidate, alpha in spent.items()]


def asked_before(home: Path, program: str, question: Question) -> list[Asked]:
    """Return `asked` of the program's ledger."""
    with _lock(home, program):
        return asked(read(home, program), question)


def keep(home: Path, program: str, question: Question, candidate: str, *, alpha: float, look: int) -> None:
    """Write a look down; one that is there already, and spent as much, is not written again."""
    with _lock(home, program):
        if any(a.candidate == candidate and a.alpha >= alpha for a in asked(read(home, program), question)):
            return
        line = {"gate": question.gate, "sets": question.sets, "candidate": candidate, "alpha": alpha, "look": look}
        Ledger(path_of(home, program), remedy=_REMEDY).append([line])


def _lock(home: Path, program: str) -> Any:
    return short_lock(path_of(home, program).with_name("looks.lock"))


def question(params: Mapping[str, Any], contents: Mapping[str, str | None]) -> Question:
    """Return what a gate node asks; `contents`: set -> sha256 of its problems, None where it has none or is not made yet."""
    name = str(params["name"]).partition("@")[0]
    tested = [r["set"] for r in params["gate"]["require"] if r["metric"] != "regressed_cases"]
    return Question(name, tuple(params["others"]), {s: d for s in dict.fromkeys(tested) if (d := contents.get(s))})


def content(folder: Path | None) -> str | None:
    """Return the sha256 of a data set's problems; None where it has none."""
    path = None if folder is None else folder / RECORDS
    return sha256_file(path) if path is not None and path.is_file() and path.stat().st_size else None


def known(plan: Plan, state: State, found: Mapping[str, Status]) -> dict[str, Known]:
    """Return, by gate node, what is known of looks before a plan runs. A set that is not made yet has none."""
    lines = read(state.home, plan.program)
    return {n.id: _known(n, state, found, lines) for n in plan.nodes if n.kind == "gate"}


def _known(gate: Node, state: State, found: Mapping[str, Status], lines: list[Json]) -> Known:
    contents = {s: content(_folder(state, found[gate.inputs[f"data.{s}"]])) for s in gate.params["sets"]}
    earlier = [source for name, source in gate.inputs.items() if name.startswith("earlier.")]
    waiting = [g for g in earlier if _folder(state, found[g]) is None]
    folder = _folder(state, found[gate.id])
    return Known(
        asked(lines, question(gate.params, contents)), None if folder is None else _candidate(folder), len(waiting)
    )


def _folder(state: State, status: Status) -> Path | None:
    """Return the output of a node that is done."""
    if status.run_key is None or state.receipt(status.run_key) is None:
        return None
    return state.out(status.run_key)


def _candidate(folder: Path) -> str | None:
    try:
        return json.loads((folder / "gate.json").read_bytes())["candidate_digest"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StateError(f"{folder}: no usable gate record ({e}); run the program again from its gate") from e
