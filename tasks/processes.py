"""Processes: told from later ones with the same pid, started in a session of their own, ended in bounded time.

The only module that starts or signals a process (a nursery forks its own). Whoever starts one ends it with `end`.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

Child = subprocess.Popen[bytes]
PIPE = subprocess.PIPE
NOTHING = subprocess.DEVNULL
TO_STDOUT = subprocess.STDOUT
MOST = 16 * 2**20
"""Bytes of each stream that are kept of a program that is run to its end."""
_CHUNK, _PIPE = 2**16, 2**20
_POLL = 0.01
_REAP_SECONDS = 2.0
_MARK = "TUTELAGE_OWNER"
"""Variable of a marked program: pid namespace, pid and start time of the process that owns it, and its name."""


# --- who is alive


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

    def poll(self) -> int | None:
        """Return None while it lives, as a child's `poll` does; its exit code is not known here."""
        return None if self.alive else 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)


def boot_id() -> str:
    """Return the id of this boot of the machine; empty where the system tells none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Return a process's state, parent, group, session and so on; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _start_of(pid: int) -> str | None:
    """Return a process's start time; None for one that is gone or only waits to be reaped."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else fields[19]


def this_process(pid: int | None = None) -> Process:
    """Return this process (or the one with `pid`) as others will recognise it."""
    pid = os.getpid() if pid is None else pid
    fields = _stat(pid)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Process(pid, fields[19] if fields else "", boot_id(), socket.gethostname(), now)


def process_from(data: Any) -> Process | None:
    """Return the process that `to_dict` wrote; None for anything else."""
    try:
        return Process(**data)
    except TypeError:
        return None


def pid_is_free(pid: int) -> bool:
    """Return whether no process has this pid now."""
    return not _stat(pid)


# --- starting


def spawn(
    command: Sequence[str],
    *,
    stdin: IO[Any] | int = NOTHING,
    stdout: IO[Any] | int = NOTHING,
    stderr: IO[Any] | int = NOTHING,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start a program as the leader of a session of its own, so that `end` reaches all that it starts."""
    return subprocess.Popen(
        list(command), stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=None if env is None else dict(env),
        pass_fds=tuple(pass_fds), start_new_session=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended that was run to its end."""

    code: int
    out: str
    """What it wrote, up to `MOST`; where there was more, a last line says how much was left out."""
    err: str


def run(
    command: Sequence[str],
    *,
    seconds: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: str = "",
) -> Done:
    """Run a program to its end with `text` as its input. OSError where it is not there, TimeoutError after `seconds`.

    What it started and left behind is ended with it.
    """
    child = spawn(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=cwd, env=env)
    try:
        heard = _converse(child, text.encode(), time.monotonic() + seconds)
        if heard is None:
            raise TimeoutError(f"{' '.join(command[-3:])}: no end after {seconds:.0f} s")
    finally:
        end(child)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    return Done(child.returncode, *(h.text() for h in heard))


class _Heard:
    """The beginning of what a program wrote to a stream."""

    def __init__(self, stream: IO[bytes]) -> None:
        os.set_blocking(stream.fileno(), False)
        self.stream, self.kept, self.left_out, self.open = stream, bytearray(), 0, True

    def read(self) -> bool:
        """Take what there is; return whether there was anything."""
        try:
            data = os.read(self.stream.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        room = max(0, MOST - len(self.kept))
        self.kept += data[:room]
        self.left_out += len(data[room:])
        self.open = bool(data)
        return self.open

    def text(self) -> str:
        """Return it, and how much of it was left out."""
        more = f"\n[{self.left_out} further bytes were left out]" if self.left_out else ""
        return self.kept.decode(errors="replace") + more


def _converse(child: Child, out: bytes, until: float) -> list[_Heard] | None:
    """Write to a program and hear it until it has ended, whoever else still holds its pipes; None where it is late."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    os.set_blocking(child.stdin.fileno(), False)
    heard = [_Heard(child.stdout), _Heard(child.stderr)]
    while child.poll() is None:
        if time.monotonic() > until:
            return None
        readers = {h.stream: h for h in heard if h.open}
        ready, writable, _ = select.select(readers, [child.stdin] if out else [], [], _POLL)
        for stream in ready:
            readers[stream].read()
        if writable:
            out = _written(child.stdin.fileno(), out)
        if not out and not child.stdin.closed:
            child.stdin.close()
    for h in heard:
        for _ in range(_PIPE // _CHUNK):  # what it had written before it ended, and not what others go on writing
            if not h.open or not h.read():
                break
    return heard


def _written(target: int, out: bytes) -> bytes:
    """Write what fits and return the rest; nothing is left for a program that reads no more."""
    try:
        return out[os.write(target, out[:_CHUNK]) :]
    except BlockingIOError:
        return out
    except BrokenPipeError:
        return b""


# --- ending


def until_closed(stdin: int) -> None:
    """Return when the other side of a descriptor is closed or gone; what it sends is dropped."""
    while True:
        try:
            data = os.read(stdin, 4096)
        except OSError:
            data = b""
        if not data:
            return


class Endable(Protocol):
    """A child of this process, or a `Process` of somebody else's."""

    @property
    def pid(self) -> int:
        """Return its pid, which is that of its group where it was started by `spawn`."""
        ...

    def poll(self) -> int | None:
        """Return None while it lives."""
        ...


def ask_to_end(child: Endable) -> None:
    """Send SIGTERM to a process alone, which may save and end what it started."""
    if child.poll() is None:
        _signal(os.kill, child.pid, signal.SIGTERM)


def end(*children: Endable, grace: float = 0.0, wait: float = _REAP_SECONDS) -> bool:
    """End processes with all that they started: SIGTERM, at most `grace` seconds, SIGKILL, at most `wait` seconds.

    Without `grace` SIGKILL comes at once. What is left of the group of a child that is gone is ended too; a process
    of somebody else's that is gone is left alone. Returns whether all are gone.
    """
    known = [(c, _start(c)) for c in children if c.pid != os.getpid()]
    if grace > 0:
        for child, start in known:
            _signal_group(child, start, signal.SIGTERM)
        _until(lambda: all(c.poll() is not None for c, _ in known), grace)
    for child, start in known:
        _signal_group(child, start, signal.SIGKILL)
    return _until(lambda: all(c.poll() is not None for c, _ in known), wait)


def end_own_session(*, grace: float) -> None:
    """End every process of this session, this one too: SIGTERM, `grace` seconds, SIGKILL."""
    os.killpg(0, signal.SIGTERM)
    time.sleep(grace)
    os.killpg(0, signal.SIGKILL)


def kill_pid(pid: int) -> None:
    """Send SIGKILL to one process, which may be this one: for tests that end a run at a chosen point."""
    _signal(os.kill, pid, signal.SIGKILL)


# --- what left its session


def mark(name: str) -> dict[str, str]:
    """Return the variable by which a program of this process's is found with all that it starts, in whatever session."""
    return {_MARK: f"{_namespace()}/{os.getpid()}/{_start_of(os.getpid())}/{name}"}


def end_marked(name: str) -> int:
    """End what is left of a marked program of this process's; return how many processes that was."""
    own = mark(name)[_MARK]
    return _end_all(lambda found: found == own)


def end_ownerless() -> int:
    """End what is left of marked programs whose owner is gone; return how many processes that was."""
    here = _namespace()

    def ownerless(found: str) -> bool:
        namespace, pid, start, _ = found.split("/", 3)
        return namespace == here and pid.isdigit() and _start_of(int(pid)) != start

    return _end_all(ownerless)


def _namespace() -> str:
    """Return the pid namespace, in which alone a pid means this process; empty where the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _end_all(wanted: Callable[[str], bool]) -> int:
    """End processes by their mark until there are no new ones, for at most two seconds."""
    ended: set[int] = set()

    def none_left() -> bool:
        left = [pid for pid, found in _marked() if pid != os.getpid() and wanted(found)]
        ended.update(left)
        for pid in left:
            _signal(os.kill, pid, signal.SIGKILL)
        return not left

    _until(none_left, _REAP_SECONDS)
    return len(ended)


def _marked() -> Iterator[tuple[int, str]]:
    """Yield the marked processes that this user may look at, with their marks."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for variable in (folder / "environ").read_bytes().split(b"\0"):
                name, _, value = variable.partition(b"=")
                if name == _MARK.encode() and value.count(b"/") == 3:
                    yield int(folder.name), value.decode(errors="replace")


def _until(done: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL)
    return True


def _start(child: Endable) -> str | None:
    """Return the start time by which a process is known; None where its pid may be another's by now."""
    fields = _stat(child.pid)
    if isinstance(child, Process):
        here = (child.host, child.boot) == (socket.gethostname(), boot_id())
        return child.start if here and fields and fields[19] == child.start else None
    return fields[19] if fields and child.poll() is None else ""


def _signal_group(child: Endable, start: str | None, number: signal.Signals) -> None:
    """Signal a process and its group, or what is left of that group; never a later process with the same pid."""
    fields = _stat(child.pid)
    if start is None or (fields and fields[19] != start):
        return
    if fields and int(fields[2]) != child.pid:  # in somebody else's group: it alone
        _signal(os.kill, child.pid, number)
    else:
        _signal(os.killpg, child.pid, number)


def _signal(call: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        call(pid, number)
