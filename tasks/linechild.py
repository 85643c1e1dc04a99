"""Conversation with a program of the user's own: one JSON line asks, one JSON line answers, in bounded time and size.

A program that ends, hangs, says too much or what was not asked is ended, and started again at the next question, a
bounded number of times. Environments and verifiers of `kind: process` share this; docs/bring_your_own.md is its contract.
"""

import json
import os
import select
import threading
import time
from collections.abc import Mapping
from typing import Any, cast

from specs.errors import StateError, TutelageError
from specs.strict_json import parse
from tasks.ownprogram import Launch, Running, start, until

PROTOCOL = 1
_CHUNK = 65536
_STDERR_KEPT = 2000
_SHOWN = 200
_KB, _MB = 2**10, 2**20


class LineError(TutelageError):
    """A program of the user's own gave no usable answer.

    `kind`: `ended, late, too_long, too_much, out_of_step, not_json, refused` (it said why it cannot) or `given_up`.
    """

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.kind))


class LineChild:
    """A program that is asked line by line. It may be used from several threads; questions are asked one at a time."""

    def __init__(self, launch: Launch, role: str) -> None:
        self._launch, self._role = launch, role
        self._lock = threading.RLock()
        self._running: Running | None = None
        self._hello: dict[str, Any] | None = None
        self._buffer = bytearray()
        self._errors = bytearray()
        self._heard = 0
        self._asked = 0
        self._why = ""
        self.starts = 0
        """How often it was started; what belonged to an earlier start is lost."""

    def hello(self) -> dict[str, Any]:
        """Return what the program says of itself, starting it where needed. StateError where its version moved."""
        with self._lock:
            self._be_running()
            assert self._hello is not None
            return self._hello

    @property
    def version(self) -> str:
        """Return the version that it reports, which no later start may change."""
        return self.greeting["version"]

    @property
    def greeting(self) -> dict[str, Any]:
        """Return what it said of itself at its first start; it is started only where that was never heard."""
        with self._lock:
            return self._hello if self._hello is not None else self.hello()

    def ask(self, do: str, question: Mapping[str, Any] | None = None, *, started: int | None = None) -> dict[str, Any]:
        """Return the answer to a question. LineError where there is none.

        `started`: the question is about what the program holds since that start; where it had to be started again
        it is not asked.
        """
        with self._lock:
            if started is not None and not self.holds(started):
                raise LineError(f"{self._launch.name}: what it held is lost, for {self._why}", "ended")
            self._be_running()
            return self._ask(do, question or {})

    def holds(self, started: int) -> bool:
        """Return whether what the program was told since that start is still there."""
        with self._lock:
            return self._running is not None and started == self.starts

    def close(self) -> None:
        """End the program."""
        with self._lock:
            self._stop("it was closed")

    def _be_running(self) -> None:
        if self._running is not None:
            return
        if self.starts > self._launch.limits.restarts:
            raise LineError(
                f"{self._launch.name}: given up after {self.starts} starts (limits.restarts is "
                f"{self._launch.limits.restarts}); the last one ended because {self._why}", "given_up",
            )  # fmt: skip
        self.starts += 1
        self._buffer, self._errors, self._heard = bytearray(), bytearray(), 0
        self._running = start(self._launch)
        for stream in (self._running.child.stdin, self._running.child.stdout, self._running.child.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self._greet()

    def _greet(self) -> None:
        found = self._ask("hello", {"protocol": PROTOCOL, "role": self._role})
        version = found.get("version")
        if found.get("protocol") != PROTOCOL or not isinstance(version, str) or not version or len(version) > _SHOWN:
            raise self._failed(
                "out_of_step",
                f"it answered hello with protocol {found.get('protocol')!r} and version {version!r}; expected protocol "
                f"{PROTOCOL} and a version in words",
            )
        known = self._hello["version"] if self._hello is not None else self._launch.reported
        if known is not None and version != known:
            self._stop("its version moved")
            raise StateError(
                f"{self._launch.name}: reports the version {version!r}, but {known!r} when the run was planned; "
                "run the same command again"
            )
        self._hello = found

    def _ask(self, do: str, question: Mapping[str, Any]) -> dict[str, Any]:
        self._asked += 1
        line = json.dumps({"id": self._asked, "do": do, **question}, allow_nan=False, separators=(",", ":"))
        text = self._exchange(line.encode() + b"\n", do)
        try:
            answer = parse(text)
        except ValueError as e:
            raise self._odd("not_json", do, f"{str(e)[:_SHOWN]}: {text[:_SHOWN]!r}") from None
        if not isinstance(answer, dict):
            raise self._odd("not_json", do, f"no JSON object: {text[:_SHOWN]!r}")
        found = cast(dict[str, Any], answer)
        if type(found.get("id")) is not int or found["id"] != self._asked:
            raise self._failed("out_of_step", f"asked to {do} (id {self._asked}) it answered {text[:_SHOWN]!r}")
        if "error" in found:
            raise LineError(f"{self._launch.name}: {str(found['error'])[:2000]}", "refused")
        return found

    def _odd(self, kind: str, do: str, what: str) -> LineError:
        """Return the error for a line that cannot be read; the program stays, for lines still follow questions."""
        return LineError(f"{self._launch.name}: asked to {do} it gave a line that cannot be read: {what}", kind)

    def _exchange(self, out: bytes, do: str) -> str:
        """Write a line and return the next line of stdout; stderr is read beside it."""
        assert self._running is not None
        child = self._running.child
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        last = time.monotonic() + self._launch.seconds
        while (found := self._line(do)) is None:
            left = last - time.monotonic()
            if left <= 0:
                raise self._failed("late", f"asked to {do} it gave no answer within {self._launch.seconds:g} s")
            writers = [child.stdin] if out else []
            readers = [child.stdout, *([child.stderr] if not child.stderr.closed else [])]
            ready, writable, _ = select.select(readers, writers, [], left)
            if child.stderr in ready and not self._hear(child.stderr.fileno(), self._errors):
                child.stderr.close()
            if child.stdout in ready and not self._hear(child.stdout.fileno(), self._buffer):
                raise self._failed("ended", f"asked to {do} it ended")
            if writable:
                out = self._write(child.stdin.fileno(), out)
        return found

    def _line(self, do: str) -> str | None:
        """Return the next whole line; LineError where it is too long, or the program has said too much."""
        limits = self._launch.limits
        if self._heard > limits.output_mb * _MB:
            raise self._failed("too_much", f"it wrote more than limits.output_mb ({limits.output_mb})")
        at = self._buffer.find(b"\n")
        if at > limits.line_kb * _KB or (at < 0 and len(self._buffer) > limits.line_kb * _KB):
            raise self._failed(
                "too_long", f"asked to {do} it gave a line longer than limits.line_kb ({limits.line_kb})"
            )
        if at < 0:
            return None
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return line.decode("utf-8", errors="replace")

    def _hear(self, source: int, into: bytearray) -> bool:
        """Read what there is; return False at the end."""
        try:
            data = os.read(source, _CHUNK)
        except BlockingIOError:
            return True
        self._heard += len(data)
        into += data
        if into is self._errors:
            del into[:-_STDERR_KEPT]
        return bool(data)

    @staticmethod
    def _write(target: int, out: bytes) -> bytes:
        """Write what fits and return the rest; a program that reads no more is heard to end, or is late."""
        try:
            return out[os.write(target, out) :]
        except BlockingIOError:
            return out
        except BrokenPipeError:
            return b""

    def _failed(self, kind: str, what: str) -> LineError:
        """End the program and return the error with its evidence: how it ended, and what it last said on stderr."""
        running = self._running
        assert running is not None
        ended = kind == "ended" and until(lambda: running.child.poll() is not None, 1.0)
        if running.child.stderr is not None and not running.child.stderr.closed:
            self._hear(running.child.stderr.fileno(), self._errors)
        how = f" ({status_words(running.child.poll())})" if ended else ""
        said = self._errors.decode("utf-8", errors="replace").strip()
        why = f"{what}{how}; {said_words(said)}"
        self._stop(why)
        return LineError(f"{self._launch.name}: {why}", kind)

    def _stop(self, why: str) -> None:
        if self._running is not None:
            self._running.end()
            self._running, self._why = None, why


def status_words(status: int | None) -> str:
    """Return how a program ended, in words."""
    if status is None:
        return "it does not end"
    return f"signal {status - 128}" if status > 128 else f"exit status {status}"


def said_words(said: str) -> str:
    """Return what a program last wrote to stderr, for a message."""
    return f"stderr: {said[-_STDERR_KEPT:]}" if said else "it said nothing on stderr"
