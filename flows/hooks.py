"""Tells a command or a webhook what happened in a run, as JSON. It takes bounded time and never fails the run."""

import json
import os
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from flows.answers import HeldGate, commands, held_gate
from flows.ends import Event, NodeEnd
from flows.resolve import expand
from flows.state import RunRecord, State, now
from specs.errors import ProgramError, StateError
from specs.notify import Notify
from specs.redaction import REFERENCE
from tasks.processes import run as run_command

FORMAT = 1
_ENDS = {0: "completed", 4: "interrupted", 8: "budget"}
"""Exit code -> what is told at the end; the others were told when their node ended."""
_HURRY_SECONDS = 3.0
"""How long the end of a run that was asked to stop waits for hooks."""
_TAIL = 200


@dataclass(frozen=True, slots=True)
class _Told:
    event: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """The run that is told of."""

    program: str
    file: str
    schedule: str | None
    execution: str | None = None
    """None where it ended before it had one."""


def subject_of(record: RunRecord) -> Subject:
    """Return an execution as it is told of."""
    return Subject(record.program, record.file, record.arguments.get("schedule"), record.execution)


@dataclass(slots=True)
class Hooks:
    """The hooks of one run; a listener of its executor."""

    spec: Notify
    run: Subject
    state: State
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    problems: list[str] = field(default_factory=list[str])
    """Sentences about hooks that failed."""
    _waiting: "queue.Queue[_Told | None]" = field(default_factory=lambda: queue.Queue[_Told | None]())
    _thread: threading.Thread | None = None
    _running: str = ""

    def __call__(self, event: Event) -> None:
        """Take in how a node ended; the hook runs in a thread of its own."""
        if event.what == "ended" and event.end is not None:
            end, held = event.end, self._held(event.end)
            names, todo = self._names(end, held)
            self.tell(names, node=event.node, reason=end.reason, exit_code=end.exit_code, todo=todo, held=held)

    def _held(self, end: NodeEnd) -> HeldGate | None:
        if end.status != "held" or end.run_key is None or self.run.execution is None:
            return None
        try:
            return held_gate(self.state, end.node, end.run_key, self.run.execution)
        except StateError:  # what is wrong with it is said by `status`; that it is held is told in any case
            return None

    def _names(self, end: NodeEnd, held: HeldGate | None) -> tuple[Sequence[str], str]:
        """Return what a node's end is called, the most telling name first, and what a person may do about it."""
        program = self.run.program
        match end.status:
            case "failed":
                return ("node_failed",), f"tutelage logs {end.node}"
            case "gate_failed":
                return ("gate_failed",), f"tutelage status {program}"
            case "held":
                todo = f"tutelage status {program}" if held is None else ", or ".join(commands(program, held))
                return ("held", "needs_person"), todo
            case "completed" if end.receipt is not None and end.receipt.metrics.get("promoted"):
                return ("promoted",), ""
            case "completed" if self._asks(end):
                return ("needs_person",), f"tutelage cases list {program}"
            case _:
                return (), ""

    def _asks(self, end: NodeEnd) -> bool:
        if end.run_key is None or end.receipt is None:
            return False
        return any(e.path == "asks.jsonl" and e.size > 0 for e in end.receipt.outputs)

    def ended(self, exit_code: int) -> None:
        """Take in how the whole execution ended."""
        if exit_code in _ENDS:
            todo = "" if exit_code == 0 else f"tutelage resume {self.run.file}"
            self.tell([_ENDS[exit_code]], exit_code=exit_code, todo=todo)

    def tell(
        self,
        names: Sequence[str],
        *,
        node: str | None = None,
        reason: str = "",
        exit_code: int | None = 0,
        todo: str = "",
        held: HeldGate | None = None,
    ) -> None:
        """Tell one happening, under the first of its names that the program asked for."""
        event = next((n for n in names if n in self.spec.on), None)
        if event is None:
            return
        body: dict[str, Any] = {
            "format": FORMAT, "event": event, "program": self.run.program, "execution": self.run.execution,
            "node": node, "reason": reason, "exit_code": exit_code, "what_to_do": todo, "at": now(),
            "file": self.run.file, "home": str(self.state.home), "schedule": self.run.schedule,
            "evidence": None if held is None else held.evidence,
            "candidate": None if held is None else held.candidate,
        }  # fmt: skip
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hooks", daemon=True)
            self._thread.start()
        self._waiting.put(_Told(event, body))

    def finish(self, *, hurry: bool = False) -> list[str]:
        """Wait for what is still to be told, in bounded time; return sentences about hooks that failed."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(
                min(_HURRY_SECONDS, self.spec.timeout_seconds) if hurry else self.spec.timeout_seconds + 1.0
            )
            if self._thread.is_alive():
                left = [self._running, *(t.event for t in list(self._waiting.queue) if t is not None)]
                self.problems.append(f"notify: not told in time: {', '.join(filter(None, left))}")
        return list(self.problems)

    def _work(self) -> None:
        while (told := self._waiting.get()) is not None:
            self._running = told.event
            text = json.dumps(told.body, allow_nan=False)
            problem = self._command(text) if self.spec.command is not None else self._post(text)
            if problem is not None:
                self.problems.append(f"notify {told.event}: {problem}; the run itself is not touched by that")
            self._running = ""

    def _command(self, text: str) -> str | None:
        """Run the command; return what went wrong."""
        assert self.spec.command is not None
        shown = self.spec.command[0]
        try:
            command = [expand(part, self.environ) for part in self.spec.command]
            done = run_command(command, seconds=self.spec.timeout_seconds, env=self.environ, text=text)
        except ProgramError as e:
            return str(e)
        except TimeoutError:
            return f"{shown} did not end within {self.spec.timeout_seconds:g} s and was ended"
        except OSError as e:
            return f"{shown} cannot be run ({e.strerror})"
        except ValueError as e:  # an argument that no program can be given
            return f"{shown} cannot be run ({type(e).__name__})"
        if done.code == 0:
            return None
        said = self._clean((done.err or done.out).strip()[-_TAIL:])
        return f"{shown} ended with status {done.code}{f': {said}' if said else ''}"

    def _clean(self, text: str) -> str:
        """Return text without the values of references."""
        for part in self.spec.command or ():
            for name in REFERENCE.findall(part):
                if value := self.environ.get(name):
                    text = text.replace(value, f"${{env:{name}}}")
        return " ".join(text.split())

    def _post(self, text: str) -> str | None:
        """Send the event; return what went wrong. The address is a secret and is never part of what is said."""
        assert self.spec.webhook is not None
        said: list[str | None] = []
        thread = threading.Thread(target=lambda: said.append(self._send(text)), daemon=True)
        thread.start()
        thread.join(self.spec.timeout_seconds)  # in all: a limit per read would never fire on a slow drip
        return said[0] if said else f"{self.spec.webhook} did not answer within {self.spec.timeout_seconds:g} s"

    def _send(self, text: str) -> str | None:
        name = str(self.spec.webhook)
        try:
            url = expand(name, self.environ)
        except ProgramError as e:
            return str(e)
        if not url.startswith(("http://", "https://")):
            return f"{name} is no address; expected http:// or https://"
        local = "://127.0.0.1" in url or "://localhost" in url
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
        try:
            request = urllib.request.Request(url, text.encode(), {"content-type": "application/json"})
            with opener.open(request, timeout=self.spec.timeout_seconds) as reply:
                reply.read(64)
            return None
        except urllib.error.HTTPError as e:
            return f"{name} answered {e.code}"
        except (OSError, ValueError, HTTPException) as e:
            return f"{name} cannot be reached ({type(e).__name__})"


def told_crash(hooks: Hooks, last: RunRecord | None) -> None:
    """Tell that the run before this one ended without a word, where it did."""
    if last is not None and last.arguments.get("crashed"):
        hooks.tell(["crashed"], reason=f"execution {last.execution} ended without a word; this one goes on from it")
