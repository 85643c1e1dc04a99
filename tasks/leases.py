"""The one lease: a lock that dies with its holder, and a word inside that says who that is."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specs.errors import StateError
from tasks.processes import process_from, this_process


class Lease:
    """A lock file: flock decides, the JSON inside says who holds it. Freed by the system when the holder dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def try_acquire(self, **more: Any) -> bool:
        """Take the lease if it is free, and write who holds it and `more` into it; else change nothing."""
        assert self._fd is None, "the lease is already held"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        self.note(**more)
        return True

    def note(self, **more: Any) -> None:
        """Write into a held lease who holds it and what else must be known after a crash."""
        assert self._fd is not None, "the lease is not held"
        text = json.dumps({"holder": this_process().to_dict(), **more}).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def release(self) -> None:
        """Give the lease up; its file stays, empty."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    @property
    def held_elsewhere(self) -> bool:
        """Return whether another holder lives."""
        if self._fd is not None or not self.path.exists():
            return False
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def read(self) -> dict[str, Any]:
        """Return what the last holder wrote; empty after a clean release or a torn write."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}


@contextlib.contextmanager
def short_lock(path: Path, *, seconds: float = 20.0) -> Iterator[None]:
    """Hold a lease for a moment. StateError naming the holder where another keeps it for too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lease = Lease(path)
    until, pause = time.monotonic() + seconds, 0.001
    while not lease.try_acquire():
        if time.monotonic() > until:
            holder = process_from(lease.read().get("holder"))
            who = "another process" if holder is None else f"process {holder.pid} on {holder.host}"
            raise StateError(f"{path}: held by {who} for {seconds:.0f} s; wait for it or end it, and try again")
        time.sleep(pause)
        pause = min(0.02, 2 * pause)
    try:
        yield
    finally:
        lease.release()


def foreign_holder(path: Path) -> str | None:
    """Return what stands in another tool's lock file (its holder's pid) while that is locked; None while it is free.

    Such tools lock with `flock` or with `lockf`; both are asked.
    """
    with path.open("r+", encoding="utf-8") as f:
        try:
            fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f.read().strip() or "unknown"
    return None
