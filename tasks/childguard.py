"""Starts a program under limits and ends it, with all that it started, when its owner is gone or it has ended.

Run as a script by `tasks.ownprogram`, with nothing but the standard library: `childguard.py LIFE LIMITS FOLDER COMMAND…`.
LIFE is a descriptor that ends when the owner does; LIMITS is `RLIMIT_…=number,…`; FOLDER is the program's own and is removed
at the end. The program gets stdin, stdout and stderr. Little is imported: this stands before every program that is started.
"""
# ruff: noqa: SIM105, PTH106, PTH108, PTH123, PTH208

import ctypes
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # prctl
_DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What a program may send to its own group; the guard outlives it and says how it ended."""
_REAP_SECONDS = 2.0


def main(life: int, limits: dict[str, int], command: list[str]) -> tuple[int, bool]:
    """Run the command; return its status, 128 and more where a signal ended it, and whether all that it left is gone."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    if prctl is not None:
        prctl(_SUBREAPER, 1, 0, 0, 0)  # what the program leaves behind becomes a child of this process
    awake, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _DEAF:
        signal.signal(number, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        _become(life, limits, command, prctl)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    status = _wait(pid, life, awake)
    gone = _end_all(pid)
    return status if status >= 0 else 128 - status, gone


def _become(life: int, limits: dict[str, int], command: list[str], prctl: "Callable[..., int] | None") -> None:
    """Turn this process into the program; 127 where that cannot be.

    It stays in the guard's group, so that the owner reaches what it started also where the guard was killed.
    """
    try:
        os.close(life)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, *_DEAF):
            signal.signal(number, signal.SIG_DFL)
        if prctl is not None:
            prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        else:
            os.setsid()
        for name, value in limits.items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        os.execvp(command[0], command)
    except OSError as e:
        os.write(2, f"cannot be started: {command[0]}: {e.strerror}\n".encode())
    finally:
        os._exit(127)


def _wait(pid: int, life: int, awake: int) -> int:
    """Return the program's status when it has ended; end it where the owner is gone."""
    while True:
        ready, _, _ = select.select([life, awake], [], [], 1.0)
        if awake in ready:
            os.read(awake, 4096)
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == pid:
            return os.waitstatus_to_exitcode(status)
        if life in ready and not os.read(life, 1):
            _signal(os.kill, pid)
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status)


def _end_all(pid: int) -> bool:
    """End what the program left, for at most two seconds: each process, for this one is of the same group."""
    if sys.platform != "linux":
        _signal(os.killpg, pid)
    until = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for child in _children():
                    _signal(os.kill, child)
                time.sleep(0.005)
        except ChildProcessError:
            return True
    return False


def _children() -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # no process, or one that has just ended
            continue
        if parent == os.getpid():
            found.append(int(name))
    return found


def _remove(folder: str) -> None:
    """Remove a folder with all that is in it; links are removed and not followed."""
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(folder)
    except OSError:  # the owner, where it lives, tries again
        pass


def _signal(call: "Callable[[int, int], None]", pid: int) -> None:
    try:
        call(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


if __name__ == "__main__":
    asked = dict(part.split("=") for part in sys.argv[2].split(",") if part)
    code, clean = main(int(sys.argv[1]), {name: int(value) for name, value in asked.items()}, sys.argv[4:])
    _remove(sys.argv[3])
    if not clean:  # it starts processes faster than they can be ended one by one
        os.killpg(0, signal.SIGKILL)
    sys.exit(code)
