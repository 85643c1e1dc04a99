"""Who is alive: processes named by pid, start time and boot, and locks that die with their holder."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specs.errors import BusyError, Interrupted, StateError


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start: str
    """Start time in clock ticks since boot."""
    boot: str
    host: str
    since: str
    """UTC, ISO 8601."""

    @property
    def alive(self) -> bool:
        """Return whether exactly this process still runs on this machine."""
        return self.host == socket.gethostname() and self.boot == boot_id() and _start_of(self.pid) == self.start

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)

    def end(self, *, wait: float = 2.0) -> bool:
        """Kill it if it is still this process; return whether there was something to kill."""
        if not self.alive or self.pid == os.getpid():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + wait
        while self.alive and time.monotonic() < until:
            time.sleep(0.01)
        return True


def boot_id() -> str:
    """Return the id of this boot of the machine; empty where the system tells none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return a process's start time; None for one that is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def this_process(pid: int | None = None) -> Process:
    """Return this process (or the one with `pid`) as others will recognise it."""
    pid = os.getpid() if pid is None else pid
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Process(pid, _start_of(pid) or "", boot_id(), socket.gethostname(), now)


def process_from(data: Any) -> Process | None:
    """Return the process that `asdict` wrote; None for anything else."""
    try:
        return Process(**data)
    except TypeError:
        return None


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
        text = json.dumps({"holder": asdict(this_process()), **more}).encode()
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


def accelerated(device: str) -> bool:
    """Return whether work for `cpu`, `cuda` or `auto` runs on an accelerator of this machine."""
    return device == "cuda" or (device == "auto" and Path("/dev/nvidiactl").exists())


class DeviceLock:
    """One heavy node at a time on an accelerator, over every driver of this home; no lock for work on the CPU."""

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._needed = accelerated(device)

    @contextlib.contextmanager
    def held(self, stop: Callable[[], bool], poll: float = 0.2) -> Iterator[None]:
        """Hold the device. Interrupted where `stop` says so while it is another's."""
        if not self._needed:
            yield
            return
        lease = Lease(self._path)
        while not lease.try_acquire():
            if stop():
                raise Interrupted("stopped while waiting for the device")
            time.sleep(poll)
        try:
            yield
        finally:
            lease.release()


@contextlib.contextmanager
def driver_lease(path: Path, program: str, *, wait: bool = False, poll: float = 0.2) -> Iterator[Lease]:
    """Hold the lease of a program's driver. BusyError naming the holder where another has it and `wait` is not set."""
    lease = Lease(path)
    until = time.monotonic() + 1.0  # a holder that is just ending, or just writing its name
    while not lease.try_acquire(program=program):
        holder = process_from(lease.read().get("holder"))
        if not wait and ((holder is not None and holder.alive) or time.monotonic() > until):
            raise BusyError(_busy(program, holder))
        time.sleep(poll)
    try:
        yield lease
    finally:
        lease.release()


def _busy(program: str, holder: Process | None) -> str:
    who = "another process" if holder is None else f"process {holder.pid} on {holder.host}, since {holder.since}"
    return (
        f"program {program}: {who} runs it already, expected one driver at a time; "
        "wait for it with `--wait`, watch it with `tutelage status`, or stop that process"
    )


@contextlib.contextmanager
def short_lock(path: Path, *, seconds: float = 20.0) -> Iterator[None]:
    """Hold a lock for a moment; it dies with its holder. StateError where another keeps it for too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    with path.open("w") as f:
        while True:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StateError(f"{path}: held by another process for {seconds:.0f} s; try again") from None
                time.sleep(0.02)
        yield
