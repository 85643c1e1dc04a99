"""Where heavy nodes run: child processes of their own session on this machine.

They are forked from a nursery that has imported what they need; where forking is not safe (a device is in use, or
the system is not Linux) one spare process is kept warm instead.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from flows.child import Assignment, Progress, encode
from flows.leases import Process, this_process
from flows.nursery import Forked, Nursery, NurseryError
from specs.errors import Interrupted, TutelageError
from tasks.files import DRIVER_VARIABLE
from tasks.processes import PIPE, Child, ask_to_end, end, spawn

_ERRORS_SHOWN = 2000  # bytes of what a child said before its log was open


class NodeError(TutelageError):
    """A node failed; `exit_code` is that of the error it met."""

    def __init__(self, text: str, exit_code: int = 5) -> None:
        super().__init__(text)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.exit_code))


class Launcher(Protocol):
    """Runs heavy nodes somewhere. A node that returned has a receipt."""

    def prepare(self, heavy_left: int) -> None:
        """Be told how many heavy nodes may still come."""
        ...

    def run(self, work: Assignment, started: Callable[[Process], None], progress: Progress) -> list[str]:
        """Carry out a node and return notes. NodeError or Interrupted where it has no receipt."""
        ...

    def stop(self) -> None:
        """Ask every node to save and stop."""
        ...

    def kill(self) -> None:
        """End every node at once."""
        ...

    def close(self) -> None:
        """Give up what is kept warm."""
        ...


@dataclass(eq=False, slots=True)
class _Child:
    popen: Child | Forked
    errors: int
    """Descriptor of a file with what it said before its log was open."""
    notes: list[str] = field(default_factory=list[str])
    failure: dict[str, Any] | None = None
    interrupted: str | None = None

    def said(self) -> str:
        data = os.pread(self.errors, 1 << 20, 0)
        return data[-_ERRORS_SHOWN:].decode(errors="replace").strip()


class LocalLauncher:
    """Child processes on this machine. Importing torch costs a node nothing: it is forked, or takes the warm spare."""

    def __init__(self, threads: int = 1, preload: tuple[str, ...] = (), *, fork: bool = False) -> None:
        self._fork = fork and sys.platform == "linux"
        self._nursery: Nursery | None = None
        self._threads = threads
        self._preload = preload
        self._lock = threading.Lock()
        self._spare: _Child | None = None
        self._running: set[_Child] = set()
        self._left = 0
        self._starting = 0
        """Nodes that wait for their process: the nursery may still be importing."""
        self._stopping = False
        # The thread that spawns must outlive the children: the system sends their parent-death signal when *it* ends.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")

    def prepare(self, heavy_left: int) -> None:
        """Keep one spare warm while heavy nodes may come; end it when none will."""
        with self._lock:
            self._left = heavy_left
            if self._fork:
                self._keep_nursery()
            elif heavy_left > 0 and self._spare is None and not self._stopping:
                self._spare = self._spawner.submit(self._popen).result()
            elif heavy_left == 0:
                self._drop_spare()

    def _keep_nursery(self) -> None:
        if self._left > 0 and self._nursery is None and not self._stopping:
            self._nursery = self._spawner.submit(Nursery, self._variables(), self._preload).result()
        elif self._left == 0 and self._nursery is not None and not self._running and not self._starting:
            self._nursery.close()
            self._nursery = None

    def _spawn(self) -> _Child:
        """Return a new process. Never called with the lock held, for it may wait until the nursery has imported."""
        nursery = self._nursery
        if nursery is not None:
            with tempfile.TemporaryFile() as errors:
                try:
                    return _Child(nursery.fork(errors.fileno()), os.dup(errors.fileno()))
                except NurseryError:  # a process of its own says better what is wrong, and may still work
                    self._give_up(nursery)
        return self._spawner.submit(self._popen).result()

    def _give_up(self, nursery: Nursery) -> None:
        """Do without a nursery that is gone. Interrupted where it was ended because the run stops."""
        with self._lock:
            if self._nursery is nursery:
                nursery.close()
                self._nursery, self._fork = None, False
            if self._stopping:
                raise Interrupted("stopped before its process was started")

    def _variables(self) -> dict[str, str]:
        threads = str(self._threads)
        return {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "PYTHONHASHSEED": "0",
            DRIVER_VARIABLE: str(os.getpid()),
        }

    def _popen(self) -> _Child:
        with tempfile.TemporaryFile() as errors:
            command = [sys.executable, "-m", "flows.child", ",".join(self._preload)]
            popen = spawn(command, stdin=PIPE, stdout=PIPE, stderr=errors, env=self._variables())
            return _Child(popen, os.dup(errors.fileno()))

    def _take(self) -> _Child:
        with self._lock:
            if self._stopping:
                raise Interrupted("stopped before its process was started")
            child, self._spare = self._spare, None
            self._starting += 1
        try:
            if child is None or child.popen.poll() is not None:
                child = self._spawn()
        finally:
            with self._lock:
                self._starting -= 1
        with self._lock:
            if self._stopping:
                _end(child)
                raise Interrupted("stopped before its process was started")
            self._running.add(child)
            self._left -= 1
            if self._left > 0 and not self._fork and self._spare is None:
                self._spare = self._spawner.submit(self._popen).result()
            return child

    def run(self, work: Assignment, started: Callable[[Process], None], progress: Progress) -> list[str]:
        """Carry out a node in a child process and return its notes."""
        child = self._take()
        try:
            started(this_process(child.popen.pid))
            stdin, stdout = child.popen.stdin, child.popen.stdout
            assert stdin is not None
            assert stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it died: its exit status says so below
                stdin.write(encode(work))
                stdin.flush()
            for line in stdout:
                self._hear(child, line, progress)
            self._judge(work, child, child.popen.wait())
        finally:
            with self._lock:
                self._running.discard(child)
            _close(child)
        return child.notes

    @staticmethod
    def _hear(child: _Child, line: bytes, progress: Progress) -> None:
        try:
            event = json.loads(line)
        except ValueError:  # the last line of a process that was killed while it wrote
            return
        match event.pop("event", None):
            case "progress":
                progress(event["what"], event["share"], event["figures"])
            case "note":
                child.notes.append(event["text"])
            case "failed":
                child.failure = event
            case "interrupted":
                child.interrupted = event["text"]

    def _judge(self, work: Assignment, child: _Child, code: int) -> None:
        """Raise what the end of a child means, unless it sealed its node."""
        if code == 0:
            return
        if child.interrupted is not None or (self._stopping and child.failure is None):
            raise Interrupted(child.interrupted or "ended before it could save more")
        if child.failure is not None:
            raise NodeError(child.failure["text"], child.failure["exit_code"])
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory, or killed by hand)" if name == "SIGKILL" else ""
            raise NodeError(f"its process was ended by {name}{hint}; what it printed is in {work.log}")
        said = child.said()
        with contextlib.suppress(OSError), work.log.open("a", encoding="utf-8") as f:
            f.write(f"{said}\n")
        last = said.splitlines()[-1] if said else "nothing"
        raise NodeError(f"its process ended with status {code} and no result; it said: {last} (more in {work.log})")

    def stop(self) -> None:
        """Ask every child to save and stop; start none any more."""
        with self._lock:
            self._stopping = True
            self._drop_spare()
            for child in self._running:
                ask_to_end(child.popen)

    def kill(self) -> None:
        """End every child at once."""
        with self._lock:
            self._stopping = True
            self._drop_spare()
            warm = [] if self._nursery is None else [self._nursery.process]  # whoever waits for it waits no longer
            end(*(child.popen for child in self._running), *warm)

    def close(self) -> None:
        """End what is kept warm; forked children that still run end with it. Nothing can be run afterwards."""
        with self._lock:
            self._drop_spare()
            if self._nursery is not None:
                self._nursery.close()
                self._nursery = None
        self._spawner.shutdown(wait=False)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            _end(self._spare)
            self._spare = None


def _end(child: _Child) -> None:
    end(child.popen)
    _close(child)


def _close(child: _Child) -> None:
    for stream in (child.popen.stdin, child.popen.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    os.close(child.errors)
