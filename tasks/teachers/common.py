"""What all nodes that ask one teacher at the same time have in common: places, the next moment, and whether it answers.

It lies in a folder beside the ledger: a small state under a short lock, and leases that die with their holders.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from specs.teachers import Limits
from tasks.files import write_quick
from tasks.leases import Lease, short_lock

LIMITS = "limits"
"""Folder beside the ledger, with one for each teacher."""


@dataclass(slots=True)
class State:
    """Moments are those of a clock that all processes of the machine share."""

    next: float = 0.0
    """Before it no request may be sent."""
    held: float = 0.0
    """Until then the server wants none."""
    failed: int = 0
    """Calls in a row that failed for want of the teacher."""
    pause: float | None = None
    """Until then it is left alone; None where it may be asked."""


class Common:
    """The common state as one round of questions sees it; `enter` first."""

    def __init__(self, folder: Path, limits: Limits, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.limits = limits
        self.clock = clock

    @property
    def gap(self) -> float:
        """Return the seconds between two requests."""
        return 60.0 / self.limits.requests_per_minute if self.limits.requests_per_minute else 0.0

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Be one of those who ask. Of what others left who ask no more, the gap to the next request alone counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not any(Lease(seat).held_elsewhere for seat in self.folder.glob("*.seat")):
                self._write(State(next=min(self.read().next, self.clock() + self.gap)))
            seat = next(s for n in itertools.count() if (s := Lease(self.folder / f"{n}.seat")).try_acquire())
        try:
            yield
        finally:
            seat.release()

    def read(self) -> State:
        """Return the state as it is now; nothing is known where a power cut or another version left something else."""
        try:
            return State(**json.loads((self.folder / "state.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return State()

    @contextlib.contextmanager
    def change(self) -> Iterator[State]:
        """Yield the state and keep what is made of it; nobody else changes it meanwhile."""
        with self._locked():
            state = self.read()
            yield state
            self._write(state)

    def lease(self, name: str) -> Lease:
        """Return a lease that one of those who ask may hold."""
        return Lease(self.folder / name)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return short_lock(self.folder / "lock")

    def _write(self, state: State) -> None:
        write_quick(self.folder / "state.json", json.dumps(asdict(state)))
