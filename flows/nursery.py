"""A process that has imported what heavy nodes need, and forks the process of each node from itself.

Importing torch costs seconds of a core; a fork costs milliseconds. The nursery never computes: it holds no
threads and no device, so a fork of it is clean. It ends when the driver closes its socket or dies.
"""

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import IO

from tasks.processes import end, spawn


class NurseryError(OSError):
    """The nursery is gone; its own words are the text."""


class Forked:
    """A process that the nursery forked; the part of a child of our own that a launcher uses."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = os.fdopen(stdin, "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._ended = threading.Event()

    def end(self, code: int) -> None:
        """Take note that it ended; a negative code is a signal."""
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self.returncode

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        self._ended.wait()
        assert self.returncode is not None
        return self.returncode


class Nursery:
    """The driver's side: one nursery process, asked for forks."""

    def __init__(self, variables: Mapping[str, str], preload: tuple[str, ...]) -> None:
        self._socket, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
        with theirs:
            self.process = spawn(
                [sys.executable, "-m", "flows.nursery", str(theirs.fileno()), ",".join(preload)],
                stdout=self._errors,
                stderr=self._errors,
                env=variables,
                pass_fds=[theirs.fileno()],
            )
        self._lock = threading.Lock()
        self._asked = threading.Lock()
        self._answer = threading.Condition(self._lock)
        self._born: list[int] = []
        self._codes: dict[int, int] = {}
        self._children: dict[int, Forked] = {}
        self._gone = False
        threading.Thread(target=self._listen, daemon=True, name="nursery").start()

    def fork(self, errors: int) -> Forked:
        """Return a new process that waits for its assignment. NurseryError where the nursery is gone."""
        their_in, our_in = os.pipe()
        our_out, their_out = os.pipe()
        try:
            with self._asked:
                pid = self._ask([their_in, their_out, errors])
        except BaseException:
            os.close(our_in)
            os.close(our_out)
            raise
        finally:
            os.close(their_in)
            os.close(their_out)
        child = Forked(pid, our_in, our_out)
        with self._lock:
            self._children[pid] = child
            if pid in self._codes:
                child.end(self._codes.pop(pid))
            elif self._gone:
                child.end(-signal.SIGKILL)  # it dies with its nursery
        return child

    def _ask(self, descriptors: list[int]) -> int:
        rights = array.array("i", descriptors)
        try:
            self._socket.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as e:
            raise NurseryError(self._said()) from e
        with self._answer:
            self._answer.wait_for(lambda: self._born or self._gone)
            if not self._born:
                raise NurseryError(self._said())
            return self._born.pop()

    def _listen(self) -> None:
        with self._socket.makefile("r", encoding="utf-8") as lines, contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._hear(json.loads(line))
        with self._answer:
            self._gone = True
            for child in self._children.values():
                if child.returncode is None:
                    child.end(-signal.SIGKILL)
            self._answer.notify_all()

    def _hear(self, event: dict[str, int]) -> None:
        with self._answer:
            pid = event["pid"]
            if "code" not in event:
                self._born.append(pid)
                self._answer.notify_all()
            elif pid in self._children:
                self._children.pop(pid).end(event["code"])
            else:
                self._codes[pid] = event["code"]

    def _said(self) -> str:
        try:
            data = os.pread(self._errors.fileno(), 1 << 16, 0).decode(errors="replace").strip()
        except ValueError:  # closed by now
            data = ""
        return data or "the process that starts nodes is gone"

    def close(self) -> None:
        """End the nursery. Children that run must have ended before."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        end(self.process)
        self._errors.close()


def main(descriptor: int, preload: list[str]) -> int:
    """Import, then fork on request until the driver is gone."""
    from flows.child import die_with_parent, warm

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    warm(preload)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    while True:
        ready, _, _ = select.select([channel, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 512)
            _reap(channel)
        if channel in ready:
            message, descriptors, _, _ = socket.recv_fds(channel, 1, 3)
            if not message:
                return 0
            pid = os.fork()
            if pid == 0:
                _become_child(channel, (wake_read, wake_write), descriptors)
            for d in descriptors:
                os.close(d)
            _tell(channel, pid=pid)


def _tell(channel: socket.socket, **event: int) -> None:
    channel.sendall(json.dumps(event).encode() + b"\n")


def _reap(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(channel, pid=pid, code=os.waitstatus_to_exitcode(status))


def _become_child(channel: socket.socket, wake: tuple[int, int], descriptors: list[int]) -> None:
    """Be the process of a node; never returns."""
    from flows.child import main as carry_out

    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.close()
        for d in wake:
            os.close(d)
        for number, d in enumerate(descriptors):
            os.dup2(d, number)
            os.close(d)
        code = carry_out([])
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException as e:  # noqa: BLE001 - the end of a process: its hook writes the failure down
        sys.excepthook(type(e), e, e.__traceback__)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), [m for m in sys.argv[2].split(",") if m]))
