"""What runs beside an execution: the Prefect flow that shows it, and the recorder of metrics and data versions.

Both are processes of their own (`flows.mirror`, `flows.recorder`) that follow the execution's ledger. The executor
alone carries nodes out, so nothing here can hold a node up, lose its work, or keep the process from ending.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flows import recorder, services
from flows.execute import Executor
from flows.nodes import Plan
from flows.state import State
from specs.errors import TutelageError
from tasks.processes import PIPE, Child, end, spawn

Say = Callable[[str], None]
FINISH_SECONDS = 20.0
"""How long the end of a run may wait for what Prefect and MLflow still have to be told."""
INTERRUPTED_SECONDS = 6.0
"""The same after a request to stop."""


def run_flow(plan: Plan, executor: Executor, state: State, say: Say | None = None) -> None:
    """Show the run in Prefect and record it, until every wanted node has ended. Never raises for a service.

    The caller has saved the record of the execution and started the executor. What goes wrong with a service is
    told once, through `say` and the executor's notes.
    """
    told = _Teller(executor, say)
    record = state.last(plan.program)
    assert record is not None, "the execution is recorded before its nodes start"
    recording = recorder.Events(state, record.execution)
    with _kept(told, "metrics and data versions are not recorded"):
        recording.start(plan, record)
        recorder.start(state.home)
    executor.prestart()
    mirror = _Mirror(state.home, plan, record.execution, executor, told)
    try:
        while not executor.finished:
            time.sleep(0.05)
            mirror.check()
        with _kept(told, "the end of this run is not recorded"):
            recording.end(executor.exit_code())
        until = time.monotonic() + (INTERRUPTED_SECONDS if executor.stopping else FINISH_SECONDS)
        mirror.finish(until)
        for text in recorder.drain(state.home, record.execution, min(10.0, until - time.monotonic())):
            told(text)
    finally:
        mirror.close()


@contextlib.contextmanager
def _kept(told: Say, what: str) -> Iterator[None]:
    """Tell what goes wrong with a service instead of letting it end the run."""
    try:
        yield
    except (TutelageError, OSError) as e:
        told(f"{what}: {e}")


class _Teller:
    """Says a sentence once, to the person and to the notes of the run."""

    def __init__(self, executor: Executor, say: Say | None) -> None:
        self._executor = executor
        self._say = say
        self._told: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._executor.notes.append(text)
            if self._say is not None:
                self._say(text)


class _Mirror:
    """The process that runs the Prefect flow, and the server that it needs."""

    def __init__(self, home: Path, plan: Plan, execution: str, executor: Executor, told: Say) -> None:
        self._told = told
        self._use: services.Use | None = None
        self._process: Child | None = None
        self._log = home / "prefect" / "mirror.log"
        with _kept(told, "the run goes on without Prefect"):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._use = services.prefect(home)
            self._process = self._start([str(home), plan.program, execution])
            self._write(json.dumps(executor.wanted))

    def _start(self, arguments: list[str]) -> Child:
        with self._log.open("w") as log:
            return spawn([sys.executable, "-m", "flows.mirror", *arguments], stdin=PIPE, stdout=PIPE, stderr=log)

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; `check` says why
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def check(self) -> None:
        """Say it once where the flow had to give up."""
        if self._process is None or self._process.poll() is None:
            return
        assert self._process.stdout is not None
        said = self._process.stdout.read().decode(errors="replace").strip()
        code = self._process.returncode
        self._process = None
        if code != 0:
            reason = said or f"the process that shows it ended with status {code}; see {self._log}"
            self._told(f"the run goes on without Prefect: {reason}")

    def finish(self, until: float) -> None:
        """Let the flow end, but not for longer than `until`."""
        if self._process is None:
            return
        self._write("end")
        while self._process is not None and time.monotonic() < until:
            time.sleep(0.02)
            self.check()
        if self._process is not None:
            self._told("Prefect was not told everything in time; the run itself is complete on disk")

    def close(self) -> None:
        """End the process, by its pid, and give the server up."""
        if self._process is not None:
            end(self._process)
        if self._use is not None:
            self._use.release()


def reconcile(home: Path) -> list[str]:
    """Clear what a killed driver left: dead servers and their records; return sentences about it.

    Its Prefect flow runs are set Crashed by its own mirror, or by the next one as soon as that has a server.
    """
    return services.reconcile(home)
