"""Leases of drivers and of the device."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from specs.errors import BusyError, Interrupted
from tasks.leases import Lease, foreign_holder, short_lock
from tasks.processes import Process, process_from, this_process

__all__ = [
    "DeviceLock",
    "Lease",
    "Process",
    "driver_lease",
    "foreign_holder",
    "process_from",
    "short_lock",
    "this_process",
]


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
    path.parent.mkdir(parents=True, exist_ok=True)
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
