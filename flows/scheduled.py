"""The flow that a schedule starts: it runs a program as `tutelage run FILE --scheduled NAME` does and shows how it went.

A worker runs it in a process of its own; the driver is a child of that, in a session of its own, and is asked to save
and stop where this process is told to end or is gone. What is done lies in receipts, so that the next run goes on.
"""

import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from prefect import flow
from prefect.context import get_run_context

from flows.failing import tell_failed
from flows.hooks import Subject
from flows.scheduling import (
    FAILURES,
    Attempt,
    driver_command,
    driver_environment,
    drove,
    ended_state,
    holder,
    state_named,
    superseded,
    too_late,
)
from flows.state import State, now
from specs.errors import TutelageError
from specs.schedule import BY_HAND
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
    return f"{asked.get('program')} {asked.get('schedule', BY_HAND)} {due:%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a run is asked for, and what its deployment says of it now."""

    program: str
    file: str
    schedule: str
    overlap: str
    catchup: str
    code: str
    notify: dict[str, Any] | None


@flow(name="scheduled", flow_run_name=_name, persist_result=False, retries=0)
def scheduled(  # noqa: PLR0913 - the parameters of its deployments
    program: str,
    file: str,
    home: str,
    code: str,
    notify: dict[str, Any] | None = None,
    schedule: str = BY_HAND,
    overlap: Literal["skip", "wait"] = "skip",
    catchup: Literal["latest", "none"] = "latest",
    rounds_only: bool = False,  # noqa: FBT001
) -> Any:
    """Run a program unattended and end in a state that says how it went."""
    from flows.deployments import client

    run = get_run_context().flow_run  # type: ignore[union-attr]
    assert run is not None
    asked = _Asked(program, file, schedule, overlap, catchup, code, notify)
    attempt = Attempt(State(Path(home)), program, str(run.id))
    driven = False
    try:
        attempt.state.prepare()
        with client(attempt.state.home, _url()) as found:
            asked = _recorded(found, run, asked)
            ended = _unneeded(found, run, asked, attempt)
        if ended is None:
            command = driver_command(file, schedule, wait=overlap == "wait", rounds_only=rounds_only)
            ended, driven = _drive(command, attempt)
    except (TutelageError, OSError) as e:
        ended = state_named("failed", str(e))
    if not driven and ended.name in FAILURES:
        about = Subject(program, file, schedule)
        told = tell_failed(about, attempt.state, asked.notify, ended, environ=driver_environment(attempt.state.home))
        ended.message = "; ".join([ended.message or "", *told])
    return attempt.ended(ended)


def _unneeded(found: Any, run: Any, asked: _Asked, attempt: Attempt) -> Any:
    """Return the state of a run that is not driven, with the reason; None where it is to be."""
    from flows.deployments import code_name

    if asked.code != code_name():
        return state_named(
            "refused",
            f"the deployment was made with tutelage {asked.code}, this worker has {code_name()}; "
            f"apply it again with `tutelage schedule {asked.file} --apply`, or start a worker with that code",
        )
    attempt.begin()
    for text in attempt.close_dead(found, run):
        sys.stderr.write(f"{text}\n")
    who = holder(attempt.state, asked.program)
    if asked.catchup == "latest":
        late = superseded(found, run, taken=who is not None and asked.overlap == "wait")
    else:
        late = too_late(run, datetime.now(UTC))
    if late is not None:
        return state_named("skipped", late)
    if asked.overlap == "skip" and who is not None:
        return state_named("skipped", f"overlap: {who} runs {asked.program} already")
    return None


def _url() -> str:
    from prefect.settings import get_current_settings

    return str(get_current_settings().api.url)


def _recorded(found: Any, run: Any, asked: _Asked) -> _Asked:
    """Return what is asked with code version and hooks of the deployment as it is now; a run may be planned long before."""
    if run.deployment_id is None:
        return asked
    there = found.read_deployment(run.deployment_id).parameters
    return replace(asked, code=str(there.get("code", asked.code)), notify=there.get("notify"))


def _drive(command: list[str], attempt: Attempt) -> tuple[Any, bool]:
    """Run the driver; return the state that says how it ended, and whether it came to drive or was told to end."""
    state, log = attempt.state, attempt.log
    stop, began = _Stop(), now()
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
        driven = stop.asked or drove(state, attempt.program, child.pid, began)
        return ended_state(state, attempt.program, child.returncode, _said(log)), driven
    finally:
        attempt.keep_log()
        if main:
            signal.signal(signal.SIGTERM, before)


def _said(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace").strip()[-600:]
    except OSError:
        return ""
