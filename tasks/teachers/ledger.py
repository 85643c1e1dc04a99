"""The ledger of paid calls of a program: a line before a request is sent, a line after it returned.

All nodes and runs of the program share it, so that no reply is paid for twice. Lines are
`{"event": "sent", key, attempt, id, teacher, node, run, by, usd}` and `{"event": "returned", key, id, outcome, …}`.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specs.errors import BudgetError, StateError
from tasks.faults import fault_point
from tasks.files import Ledger
from tasks.leases import short_lock
from tasks.processes import Process, process_from, this_process
from tasks.teachers import budget
from tasks.teachers.budget import Caps, InFlightError, Spent

_LONGEST = 3600.0
"""Seconds after which a request whose end is not known is not waited for: it could not be noted."""
OK = "ok"
"""Outcome of a request that brought an answer; any other is the reason why it brought none."""


@dataclass(frozen=True, slots=True)
class Returned:
    """How a request ended."""

    outcome: str
    text: str | None = None
    """The answer, whole; never kept for a failure."""
    finish: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    counted: bool = True
    """The tokens are the server's; else they are what was reserved."""
    seconds: float = 0.0
    status: int | None = None
    """HTTP status, where there was one."""
    detail: str | None = None
    """What the server said about a question that it refused."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A request whose end is not known."""

    of: tuple[Spent, Spent]
    """The teacher's account, and the node's."""
    usd: float
    """What is reserved for it."""
    expected: float
    """The same before it was multiplied by what was learnt of the teacher."""
    by: Process | None
    """Who sent it; not known of older ledgers."""
    at: float
    """When, in seconds since 1970."""


class CallLedger:
    """Answers by key, and what was spent, over every process that uses the file.

    `run_key` is that of the node that asks here: it stands in what is sent, so that attempts of a node add up.
    """

    def __init__(self, path: Path, run_key: str = "") -> None:
        self.path = path
        self._run_key = run_key
        self._by = this_process()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._read = 0
        self._answers: dict[str, Returned] = {}
        self._spent: dict[str, Spent] = {}
        self._paid: dict[str, Spent] = {}
        self._open: dict[str, _Open] = {}
        self._lines: dict[str, list[dict[str, Any]]] = {}
        self._number = 0
        self._turn = threading.Lock()  # threads of this process queue here, so that the lease is asked for by one
        with self._locked():
            self._catch_up()

    def answer(self, key: str) -> Returned | None:
        """Return the answer that was paid for, if there is one, by whatever process."""
        if key not in self._answers and self.path.exists() and self.path.stat().st_size > self._read:
            with self._locked():
                self._catch_up()
        return self._answers.get(key)

    def begin(self, key: str, attempt: int, teacher: str, node: str, usd: float, caps: Caps) -> str:
        """Reserve `usd` and note that a request is sent; return its id. BudgetError or InFlightError where a cap would be passed.

        More is reserved where the server has counted more for the teacher's requests than was expected at most.
        """
        with self._locked():
            usd = self._fitting(teacher, usd, caps)
            self._number += 1
            call = f"{key[:16]}-{os.getpid()}-{time.time_ns()}-{self._number}"
            line = {
                "event": "sent", "key": key, "attempt": attempt, "id": call, "teacher": teacher, "node": node,
                "run": self._run_key, "by": self._by.to_dict(), "usd": usd, "at": round(time.time(), 3),
            }  # fmt: skip
            self._append(line)
        fault_point("call_sent")
        return call

    def check(self, teacher: str, usd: float, caps: Caps) -> None:
        """Raise what `begin` would."""
        with self._locked():
            self._fitting(teacher, usd, caps)

    def _fitting(self, teacher: str, usd: float, caps: Caps) -> float:
        """Return what must be reserved for a request that is expected to cost at most `usd`."""
        self._catch_up()
        own, program = self.spent(teacher), self.spent()
        usd *= own.factor
        try:
            budget.check(teacher, caps, own, program, usd)
        except BudgetError as full:
            flying = self._flying()
            own = replace(own, usd=own.usd - sum(o.usd for o in flying if o.of[0] is own))
            program = replace(program, usd=program.usd - sum(o.usd for o in flying))
            try:
                budget.check(teacher, caps, own, program, usd)
            except BudgetError:
                raise full from None
            raise InFlightError(str(full)) from None
        return usd

    def _flying(self) -> list[_Open]:
        """Return the requests that will be given an end: those of processes that live, none older than `_LONGEST`."""
        young = [o for o in self._open.values() if time.time() - o.at < _LONGEST]
        living = {p for p in {o.by for o in young} if p is not None and p.alive}
        return [o for o in young if o.by in living]

    def reserved(self, call: str) -> float:
        """Return what is reserved for a request whose end is not known."""
        return self._open[call].usd

    def end(self, key: str, call: str, how: Returned) -> None:
        """Note how a request ended. Of two answers to one key the first counts."""
        fault_point("call_returned")
        with self._locked():
            self._catch_up()
            self._append({"event": "returned", "key": key, "id": call, **asdict(how)})
        fault_point("call_kept")

    def spent(self, teacher: str | None = None) -> Spent:
        """Return what was spent on a teacher, or on all of them; requests without an end count as reserved."""
        if teacher is not None:
            return self._spent.get(teacher, Spent())
        return Spent(sum(s.usd for s in self._spent.values()), sum(s.requests for s in self._spent.values()))

    def paid(self) -> Spent:
        """Return what the node spent that asks here, over all its attempts; answers that others paid for are free."""
        return self._paid.get(self._run_key, Spent())

    def attempts(self, key: str) -> tuple[int, float]:
        """Return how many requests were sent for a key so far, and what they cost."""
        sent = [r for r in self._lines.get(key, []) if r["event"] == "sent"]
        ended = {r["id"]: r["usd"] for r in self._lines.get(key, []) if r["event"] == "returned"}
        return len(sent), sum(ended.get(r["id"], r["usd"]) for r in sent)

    def lines(self, keys: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the lines of these calls, in the order of the keys."""
        for key in dict.fromkeys(keys):
            yield from self._lines.get(key, [])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._turn, short_lock(self.path.with_suffix(".lock")):
            yield

    def _append(self, line: dict[str, Any]) -> None:
        Ledger(self.path).append([line])  # cuts what a kill left of a line
        self._catch_up()

    def _catch_up(self) -> None:
        """Read what was appended since, by whomever; a torn tail is left for the next append."""
        if not self.path.exists():
            return
        with self.path.open("rb") as f:
            f.seek(self._read)
            for line in f:
                if not line.endswith(b"\n"):
                    return
                self._take(line)
                self._read += len(line)

    def _take(self, raw: bytes) -> None:
        try:
            line = json.loads(raw)
            by = process_from(line.pop("by", None))  # of no use to who reads the lines of a call
            key, call = line["key"], line["id"]
            if line["event"] == "sent":
                run = line.get("run", "")  # older ledgers name none
                of = self._spent.setdefault(line["teacher"], Spent()), self._paid.setdefault(run, Spent())
                for spent in of:
                    spent.usd += line["usd"]
                    spent.requests += 1
                self._open[call] = _Open(of, line["usd"], line["usd"] / of[0].factor, by, line.get("at", 0.0))
            else:
                self._returned(line, key, call)
            self._lines.setdefault(key, []).append(line)
        except (ValueError, KeyError, TypeError) as e:
            raise StateError(
                f"{self.path}: byte {self._read}: found a damaged record, expected a call of a teacher; "
                "move the file away to ask anew (what was answered is paid for again)"
            ) from e

    def _returned(self, line: dict[str, Any], key: str, call: str) -> None:
        how = Returned(**{k: v for k, v in line.items() if k not in ("event", "key", "id")})
        was = self._open.pop(call)
        for spent in was.of:
            spent.usd += how.usd - was.usd
        if how.counted and was.expected > 0:
            was.of[0].factor = max(was.of[0].factor, how.usd / was.expected)
        if how.outcome == OK:
            self._answers.setdefault(key, how)
