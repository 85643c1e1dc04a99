"""Named fault points: a test ends the process, or fails the disk, exactly there. Inert in every other run.

The environment variable TUTELAGE_FAULT says `name:N:action` (the N-th time that point is reached).
"""

import errno
import os
import threading
from pathlib import Path

from tasks.processes import kill_pid

FAULT_VARIABLE = "TUTELAGE_FAULT"
"""`name:N:action`; name `any` counts every point, `sealed` every `sealed.NODE`; action `kill | kill_run | enospc | eio`."""
COUNT_VARIABLE = "TUTELAGE_FAULT_COUNT"
"""A file that counts over all processes of a run, one byte per point reached; else each process counts alone."""
DRIVER_VARIABLE = "TUTELAGE_DRIVER_PID"
"""Whom `kill_run` ends beside the process itself."""

_counted = 0
_count_lock = threading.Lock()


def _count(name: str) -> int:
    global _counted
    shared = os.environ.get(COUNT_VARIABLE)
    with _count_lock:
        if shared is None:
            _counted += 1
            return _counted
        with Path(shared).open("ab") as f:
            f.write(f"{name:<15.15}\n".encode())
            f.flush()
            return f.tell() // 16


def fault_point(name: str) -> None:
    """Do nothing, unless a test asked for a kill or a disk error at this point. OSError where it asked for one."""
    wanted = os.environ.get(FAULT_VARIABLE)
    if not wanted:
        return
    at, number, action = wanted.split(":")
    if at not in (name, name.partition(".")[0], "any") or _count(name) != int(number):
        return
    if action == "kill_run" and (driver := os.environ.get(DRIVER_VARIABLE)):
        kill_pid(int(driver))
    if action in ("kill", "kill_run"):
        kill_pid(os.getpid())
    code = {"enospc": errno.ENOSPC, "eio": errno.EIO}[action]
    raise OSError(code, os.strerror(code))
