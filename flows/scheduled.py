"""The flow that a schedule starts: it runs a program as `tutelage run FILE --scheduled NAME` does and shows how it went.

A worker runs it in a process of its own; the driver is a child of that, in a session of its own, and is asked to save
and stop where this process is told to end or is gone. What is done lies in receipts, so that the next run goes on.
"""

import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prefect import flow
from prefect.context import get_run_context

from flows.scheduling import (
    Attempt,
    driver_command,
    driver_environment,
    ended_state,
    holder,
    state_named,
    superseded,
    too_late,
)
from flows.state import State
from tasks.processes import PIPE, Child, ask_to_end, end, spawn

STOP_SECONDS = 12.0
"""How long the driver gets to save and stop."""
_POLL = 0.1


@dataclass(slots=True)
class _Stop:
    """Whether this process was told to end; the driver is asked once."""

    child: Child | None = None
    asked: bool = False

    def __call__(self, *_: object) -> None:
        if not self.asked:
            self.asked = True
            if self.child is not None:
                ask_to_end(self.child)


def _name() -> str:
    """Return the name of a run: program, schedule and the time at which it was due."""
    from prefect.runtime import flow_run

    asked = flow_run.parameters or {}
    due = flow_run.scheduled_start_time
    return f"{asked.get('program')} {asked.get('schedule', 'by-hand')} {due:%Y-%m-%d %H:%M:%S}"


@flow(name="scheduled", flow_run_name=_name, persist_result=False, retries=0)
def scheduled(
    program: str,
    file: str,
    home: str,
    code: str,
    schedule: str = "by-hand",
    overlap: Literal["skip", "wait"] = "skip",
    catchup: Literal["latest", "none"] = "latest",
) -> Any:
    """Run a program unattended and end in a state that says how it went."""
    from flows.deployments import client, code_name

    run = get_run_context().flow_run  # type: ignore[union-attr]
    assert run is not None
    state = State(Path(home))
    state.prepare()
    with client(state.home, _url()) as found:
        recorded = _recorded_code(found, run, code)
        if recorded != code_name():
            return state_named(
                "refused",
                f"the deployment was made with tutelage {recorded}, this worker has {code_name()}; "
                f"apply it again with `tutelage schedule {file} --apply`, or start a worker with that code",
            )
        attempt = Attempt(state, program, str(run.id))
        attempt.begin()
        for text in attempt.close_dead(found, run):
            sys.stderr.write(f"{text}\n")
        late = superseded(found, run) if catchup == "latest" else too_late(run)
        if late is not None:
            return attempt.ended(state_named("skipped", late))
    if overlap == "skip" and (who := holder(state, program)) is not None:
        return attempt.ended(state_named("skipped", f"overlap: {who} runs {program} already"))
    command = driver_command(file, schedule, wait=overlap == "wait")
    return attempt.ended(_drive(command, attempt))


def _url() -> str:
    from prefect.settings import get_current_settings

    return str(get_current_settings().api.url)


def _recorded_code(found: Any, run: Any, code: str) -> str:
    """Return the code version of the deployment as it is now; runs planned before it was applied anew name an older."""
    if run.deployment_id is None:
        return code
    return str(found.read_deployment(run.deployment_id).parameters.get("code", code))


def _drive(command: list[str], attempt: Attempt) -> Any:
    """Run the driver and return the state that says how it ended."""
    state, log = attempt.state, attempt.log
    stop = _Stop()
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        with log.open("wb") as err:
            child = spawn(command, stdin=PIPE, stdout=err, stderr=err, env=driver_environment(state.home))
        stop.child = child
        if stop.asked:
            ask_to_end(child)
        until = None
        while child.poll() is None:
            time.sleep(_POLL)
            if stop.asked:
                until = until or time.monotonic() + STOP_SECONDS
                if time.monotonic() > until:
                    end(child)
        return ended_state(state, attempt.program, child.returncode, _said(log))
    finally:
        attempt.keep_log()
        if main:
            signal.signal(signal.SIGTERM, before)


def _said(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace").strip()[-600:]
    except OSError:
        return ""
