"""What a scheduled run decides before and after its driver: who else is at it, which late run counts, how it ended.

Prefect shows states; what is done lies in receipts. Each attempt names its process under `programs/<program>/attempts`,
so that one that was killed is told from one that is slow.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flows.answers import commands, held_gates
from flows.durable import write_durable, write_json
from flows.leases import Lease, Process, process_from, this_process
from flows.state import HOME_VARIABLE, RunRecord, State
from flows.worker import PREFECT_ACCESS
from specs.errors import StateError

NAMES = {
    "completed": ("COMPLETED", "Completed"),
    "nothing": ("COMPLETED", "NothingToDo"),
    "held": ("COMPLETED", "Held"),
    "skipped": ("COMPLETED", "Skipped"),
    "gate_failed": ("FAILED", "GateFailed"),
    "budget": ("FAILED", "BudgetExhausted"),
    "failed": ("FAILED", "Failed"),
    "refused": ("FAILED", "Refused"),
    "interrupted": ("CANCELLED", "Interrupted"),
    "crashed": ("CRASHED", "Crashed"),
}
"""How a scheduled run ended -> type and name of its state in Prefect."""
FAILURES = tuple(NAMES[o][1] for o in ("failed", "refused", "crashed"))
"""Names of the states in which nothing may have been told to anybody."""
_CODES = {0: "completed", 3: "gate_failed", 4: "interrupted", 7: "held", 8: "budget", 9: "skipped"}
LATE = timedelta(seconds=120)
"""A run that begins this long after its time is late."""
_LOST = timedelta(seconds=120)
"""An attempt that names no process for this long never began."""


def state_named(outcome: str, message: str) -> Any:
    """Return the Prefect state of an outcome."""
    from prefect.client.schemas.objects import State as PrefectState
    from prefect.client.schemas.objects import StateType

    kind, name = NAMES[outcome]
    return PrefectState(type=StateType(kind), name=name, message=message[:1000])


# --- the driver


def driver_command(file: str, schedule: str, *, wait: bool, rounds_only: bool) -> list[str]:
    """Return the command that runs a program as its schedule asks; it ends when its stdin closes."""
    asked = ["--wait" if wait else "--no-wait", "--rounds-only" if rounds_only else "--no-rounds-only"]
    return [sys.executable, "-m", "flows.tethered", "run", file, "--scheduled", schedule, *asked]


def driver_environment(home: Path) -> dict[str, str]:
    """Return this environment without what Prefect's engine put there for this process alone."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_") or k in PREFECT_ACCESS}
    return {**found, HOME_VARIABLE: str(home)}


def holder(state: State, program: str) -> str | None:
    """Return who drives a program now; None where nobody does."""
    lease = Lease(state.program(program) / "lease")
    if not lease.held_elsewhere:
        return None
    found = process_from(lease.read().get("holder"))
    return "another process" if found is None else f"process {found.pid}, since {found.since},"


def drove(state: State, program: str, pid: int, since: str) -> bool:
    """Return whether a driver that was started at `since` came to its first node, so that its hooks tell how it ended."""
    record = state.last(program)
    return record is not None and record.driver.get("pid") == pid and record.started >= since


def ended_state(state: State, program: str, code: int, said: str) -> Any:
    """Return the state that says how the driver ended."""
    if code < 0:
        return state_named(
            "crashed", f"the driver was ended by {signal.Signals(-code).name}; the next run goes on from receipts"
        )
    record = state.last(program)
    outcome = _CODES.get(code, "failed")
    if record is None or outcome in ("failed", "skipped") or record.exit_code != code:
        text = f"overlap: another driver runs {program}" if code == 9 else f"exit {code}: {said}"
        return state_named(outcome, text)
    if code == 0 and all(e.get("status") in ("reused", "skipped") for e in record.nodes.values()):
        return state_named("nothing", f"execution {record.execution}: everything is as it was")
    return state_named(outcome, _sentence(state, record, outcome))


def _sentence(state: State, record: RunRecord, outcome: str) -> str:
    statuses = [str(e.get("status")) for e in record.nodes.values()]
    parts = [f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses)]
    why = [f"{n}: {e.get('reason')}" for n, e in record.nodes.items() if e.get("status") == outcome and e.get("reason")]
    todo = (
        [_how_to_answer(state, record.program)] if outcome == "held" else []
    )  # before the reasons: a long message is cut
    return f"execution {record.execution}: {'; '.join([', '.join(parts), *todo, *why[:3]])}"


def _how_to_answer(state: State, program: str) -> str:
    try:
        held = held_gates(state, program)
    except StateError:  # `status` says what is wrong with it
        held = []
    said = "; ".join("answer with `{}` or `{}`".format(*commands(program, gate)) for gate in held)
    return said or f"see `tutelage status {program}`"


# --- attempts


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the flow for a program, with the process that it is."""

    state: State
    program: str
    run_id: str

    def _path(self, run_id: str) -> Path:
        return self.state.program(self.program) / "attempts" / f"{run_id}.json"

    @property
    def log(self) -> Path:
        """Return where the driver prints to."""
        return self._path(self.run_id).with_suffix(".log")

    def keep_log(self) -> None:
        """Keep what the driver printed as that of the run that ended last; each attempt writes its own until then."""
        if self.log.exists():
            write_durable(self.state.program(self.program) / "scheduled.log", self.log.read_bytes())
            self.log.unlink()

    def begin(self) -> None:
        """Write down which process this is."""
        path = self._path(self.run_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"process": this_process().to_dict()})

    def ended(self, outcome: Any) -> Any:
        """Forget the process and pass the state on."""
        self._path(self.run_id).unlink(missing_ok=True)
        return outcome

    def close_dead(self, client: Any, run: Any) -> list[str]:
        """Set earlier runs Crashed whose process is gone; return sentences about them."""
        said: list[str] = []
        for other in _open_runs(client, run.deployment_id):
            if str(other.id) == self.run_id or not self._is_dead(other):
                continue
            gone = state_named("crashed", "its process is gone; the next run goes on from receipts")
            client.set_flow_run_state(other.id, gone, force=True)
            self._path(str(other.id)).unlink(missing_ok=True)
            said.append(f"flow run {other.name}: its process is gone, shown as crashed")
        self._forget_dead()
        return said

    def _forget_dead(self) -> None:
        """Remove what attempts left that the worker itself saw crash."""
        for path in self._path(self.run_id).parent.glob("*.json"):
            found = _process_in(path)
            if found is not None and found.host == this_process().host and not found.alive:
                path.unlink(missing_ok=True)

    def _is_dead(self, other: Any) -> bool:
        found = _process_in(self._path(str(other.id)))
        if found is not None:
            return found.host == this_process().host and not found.alive
        since = other.state.timestamp if other.state is not None else None
        return since is not None and datetime.now(UTC) - since > _LOST


def _process_in(path: Path) -> Process | None:
    try:
        return process_from(json.loads(path.read_bytes()).get("process"))
    except (OSError, ValueError, AttributeError):
        return None


def _open_runs(client: Any, deployment: Any) -> list[Any]:
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterDeploymentId,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    kinds = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    where = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment]), state=FlowRunFilterState(type=kinds)
    )
    return list(client.read_flow_runs(flow_run_filter=where)) if deployment is not None else []


# --- late runs


def superseded(client: Any, run: Any, *, taken: bool) -> str | None:
    """Return why a run is not needed: a newer one of the same deployment is due already; None where it is.

    `taken`: another driver of the program works, for which this run would wait.
    """
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterExpectedStartTime

    if run.deployment_id is None or run.expected_start_time is None:
        return None
    now: Any = datetime.now(UTC)
    between = FlowRunFilterExpectedStartTime(after_=run.expected_start_time, before_=now)
    where = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[run.deployment_id]), expected_start_time=between
    )
    found = client.read_flow_runs(flow_run_filter=where)
    less = () if run.parameters.get("rounds_only") else (True,)  # rounds alone do not do what all of it does
    newer = [
        r
        for r in found
        if _counts(r, taken=taken) and _order(r) > _order(run) and r.parameters.get("rounds_only") not in less
    ]
    if not newer:
        return None
    newest = max(newer, key=_order)
    return (
        f"late: due at {_clock(run)}, and {newest.name}, due at {_clock(newest)}, does what there is to do "
        "(catchup: latest)"
    )


def _counts(run: Any, *, taken: bool) -> bool:
    """Return whether a run does the work, did it or will; one that will give itself up does not."""
    if run.state is None:
        return False
    kind, asked = run.state.type.value, run.parameters
    if kind == "COMPLETED":
        return run.state.name != "Skipped"
    if asked.get("catchup") == "none" and (run.start_time is None or too_late(run, run.start_time) is not None):
        return False
    gives_way = taken and asked.get("overlap", "skip") == "skip"
    return kind == "RUNNING" or (kind in ("SCHEDULED", "PENDING") and not gives_way)


def _order(run: Any) -> tuple[datetime, str]:
    return run.expected_start_time, str(run.id)


def _clock(run: Any) -> str:
    return f"{run.expected_start_time:%Y-%m-%d %H:%M:%S} UTC"


def too_late(run: Any, at: datetime) -> str | None:
    """Return why a run that begins at a time is not done (catchup: none); None where that is in time."""
    if run.expected_start_time is None:
        return None
    late = at - run.expected_start_time
    return None if late <= LATE else f"late: due at {_clock(run)}, {late.total_seconds():.0f} s ago (catchup: none)"
