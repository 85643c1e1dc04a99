"""The Prefect flow of one execution: one task per node, which ends as the node ends.

It runs beside the driver, as `python -m flows.mirror HOME PROGRAM EXECUTION`, and follows the execution's ledger:
a Prefect server that is slow, gone or back again never holds a node up, and a driver that dies is shown as crashed
at once (its end of stdin closes). The driver writes the wanted nodes to stdin, and `end` when all is over.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows import services
from flows.nodes import Plan, plan_from
from flows.showing import gate_rows, plan_table, slug
from flows.state import RunRecord, State
from specs.errors import ServiceError, TutelageError
from tasks.boundary import foreign

SETTINGS = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_API_REQUEST_TIMEOUT": "5",
    "PREFECT_CLIENT_MAX_RETRIES": "2",
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_TASKS_DEFAULT_RETRIES": "0",
    "PREFECT_FLOWS_DEFAULT_RETRIES": "0",
}
NAMES = {
    "reused": ("COMPLETED", "Reused"),
    "completed": ("COMPLETED", "Completed"),
    "skipped": ("COMPLETED", "Skipped"),
    "held": ("COMPLETED", "Held"),
    "gate_failed": ("FAILED", "GateFailed"),
    "failed": ("FAILED", "Failed"),
    "blocked": ("FAILED", "Blocked"),
    "interrupted": ("CANCELLED", "Interrupted"),
    "crashed": ("CRASHED", "Crashed"),
}
"""Status of a node -> type and name of its task run's state."""
NOT_READY = ("PENDING", "NotReady")
"""What Prefect calls a task behind one that failed or was cancelled."""
_POLL = 0.1
_REPAIR_SECONDS = 10.0
_REVIVE_SECONDS = 1.0


class Board:
    """How nodes ended so far, from the execution's record and ledger; tasks wait here."""

    def __init__(self, state: State, record: RunRecord, plan: Plan) -> None:
        self._state = state
        self._record = record
        self._known = {n.id for n in plan.nodes}
        self._changed = threading.Condition()
        self._ends: dict[str, dict[str, Any]] = {}
        self._last: str | None = None
        self._take(record.nodes)

    def _take(self, nodes: dict[str, dict[str, Any]]) -> None:
        with self._changed:
            new = {n: e for n, e in nodes.items() if e["status"] != "running" and n in self._known}
            self._ends.update(new)
            self._changed.notify_all()

    def read(self) -> None:
        """Take in what the ledger says by now."""
        self._take({e["node"]: e for e in self._state.events(self._record.program, self._record.execution)})

    def follow(self) -> None:
        """Read the ledger until the driver says that all is over, or is gone."""
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(sys.stdin.readline()), daemon=True)
        reader.start()
        while reader.is_alive():
            self.read()
            reader.join(_POLL)
        self.read()
        with self._changed:
            self._last = "interrupted" if lines[0].startswith("end") else "crashed"
            self._changed.notify_all()

    @property
    def over(self) -> str | None:
        """Return None while the driver runs; else how nodes that never ended are shown."""
        return self._last

    def wait(self, node: str) -> dict[str, Any]:
        """Return how a node ended, once it did, or once nothing more can happen."""
        with self._changed:
            self._changed.wait_for(lambda: node in self._ends or self._last is not None)
            return self._ends.get(node) or {"status": self._last, "reason": "not reached"}

    def done(self) -> int:
        """Return how many nodes have ended."""
        return len(self._ends)

    def outcome(self) -> tuple[str, str]:
        """Return status and reason of the whole execution."""
        found = [e["status"] for e in self._ends.values()]
        for status in ("failed", "gate_failed", "held", "interrupted"):
            if status in found:
                bad = [n for n, e in self._ends.items() if e["status"] == status]
                return status, f"{status.replace('_', ' ')}: {', '.join(bad)}"
        if len(found) < len(self._known) and self._last == "crashed":
            return "crashed", "the process that drove this run is gone; run the same command to go on"
        reused = found.count("reused")
        return "completed", f"{len(found)} nodes, {reused} reused"

    def run_key(self, node: str) -> str | None:
        """Return the run key of a node that ended."""
        return (self._ends.get(node) or {}).get("run_key")


def state_of(status: str, reason: str) -> Any:
    """Return the Prefect state under which a node with this status shows."""
    from prefect.client.schemas.objects import State as PrefectState
    from prefect.client.schemas.objects import StateType

    kind, name = NAMES[status]
    return PrefectState(type=StateType(kind), name=name, message=reason[:500] or None)


def run(plan: Plan, record: RunRecord, board: Board, use: services.Use) -> None:
    """Run the flow: a task per node in topological order, each waiting for its node and those it depends on."""
    from prefect import allow_failure, flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.context import get_run_context
    from prefect.task_runners import ThreadPoolTaskRunner

    @task(cache_policy=NO_CACHE, persist_result=False, retries=0)
    def node(node_id: str) -> Any:
        end = board.wait(node_id)
        return state_of(end["status"], end.get("reason") or "")

    runner: Any = ThreadPoolTaskRunner(max_workers=len(plan.nodes) + 1)

    @flow(
        name=plan.program,
        flow_run_name=record.execution,
        description=plan.about or None,
        persist_result=False,
        retries=0,
        validate_parameters=False,
        task_runner=runner,
    )
    def show(program: str, plan_digest: str) -> Any:
        flow_run = get_run_context().flow_run.id  # type: ignore[union-attr]
        shown = Shown(plan, record, board, use)
        shown.begin(flow_run)
        futures: dict[str, Any] = {}
        for n in plan.nodes:
            one: Any = node.with_options(name=n.id, task_run_name=n.id)
            before = [allow_failure(futures[i]) for i in dict.fromkeys(n.inputs.values()) if i in futures]
            futures[n.id] = one.submit(n.id, wait_for=before)
        while board.over is None:
            shown.update()
            time.sleep(_POLL)
        for future in futures.values():
            future.wait()
        _meet(use)
        shown.update(at_once=True)
        repair(board, {f.task_run_id: n for n, f in futures.items()}, flow_run)
        return state_of(*board.outcome())

    whole: Any = show
    whole(plan.program, record.plan, return_state=True)


def _meet(use: services.Use) -> None:
    """See that the server is there for the end of the flow; else end this process at once, with a sentence.

    An exception would have to pass the flow's engine, which first asks the absent server several times.
    """
    try:
        use.wait_ready(_REPAIR_SECONDS if use.ours else 4.0)
    except ServiceError as e:
        use.release()
        sys.stdout.write(f"{e}\n")
        sys.stdout.flush()
        os._exit(1)


class Shown:
    """The artifacts of a flow run: plan, progress and gate tables. A server that is gone is started again."""

    def __init__(self, plan: Plan, record: RunRecord, board: Board, use: services.Use) -> None:
        self._plan = plan
        self._record = record
        self._board = board
        self._use = use
        self._state = State(use.home)
        self._progress: Any = None
        self._share = -1.0
        self._gates = [n.id for n in plan.nodes if n.kind == "gate"]
        self._next = 0.0

    def begin(self, flow_run: Any) -> None:
        """Tag the flow run, show the plan and a progress bar at nought."""
        from prefect.artifacts import create_markdown_artifact, create_progress_artifact
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run, tags=["tutelage", home_tag(self._use.home)])
        text = plan_table(self._plan, self._record.plan)
        create_markdown_artifact(text, key=f"{slug(self._plan.program)}-plan", description="What is to be done")
        key = f"{slug(self._plan.program)}-progress"
        self._progress = create_progress_artifact(0.0, key=key, description="Nodes that have ended")

    def update(self, *, at_once: bool = False) -> None:
        """Show how far the nodes are, and each gate once it answered; what fails is shown later."""
        if time.monotonic() < self._next and not at_once:
            return
        self._next = time.monotonic() + _REVIVE_SECONDS
        self._revive()
        with contextlib.suppress(ServiceError), foreign("Prefect"):
            self._show()

    def _revive(self) -> None:
        """Start the server of this project again where it was ended under the run."""
        found = services.read(self._use.home, "prefect")
        if self._use.ours and (found is None or not found.alive):
            port = int(self._use.url.rpartition(":")[2].partition("/")[0])
            try:
                services.start(self._use.home, "prefect", port=port)
            except ServiceError:  # its port is taken by now; the run goes on without
                self._next = time.monotonic() + 3600.0

    def _show(self) -> None:
        from prefect.artifacts import create_table_artifact, update_progress_artifact

        share = 100.0 * self._board.done() / len(self._plan.nodes)
        if share != self._share:
            update_progress_artifact(self._progress, share)
            self._share = share
        for gate in list(self._gates):
            if (key := self._board.run_key(gate)) is None:
                continue
            rows, text = gate_rows(self._state, key)
            if rows:
                create_table_artifact(rows, key=slug(f"{self._plan.program}-{gate}"), description=text)
            self._gates.remove(gate)


def home_tag(home: Path) -> str:
    """Return the tag that tells the runs of one home from those of others on the same server."""
    import hashlib

    return f"home-{hashlib.sha256(str(home).encode()).hexdigest()[:10]}"


def repair(board: Board, nodes: dict[Any, str], flow_run: Any) -> None:
    """See that the server shows every node as it ended: states that got lost while it was away are set again.

    `nodes` says which node each task run is.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    until = time.monotonic() + _REPAIR_SECONDS
    patience = time.monotonic() + 2.0  # the server takes events in with some delay
    wanted = {run_id: NAMES[board.wait(n)["status"]] for run_id, n in nodes.items()}
    where = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        while time.monotonic() < until:
            shown = {r.id: (r.state.type.value, r.state.name) for r in _pages(client.read_task_runs, where) if r.state}
            wrong = [run_id for run_id, state in wanted.items() if shown.get(run_id) not in (state, NOT_READY)]
            if not wrong:
                return
            if time.monotonic() > patience:
                for run_id in wrong:
                    end = board.wait(nodes[run_id])
                    client.set_task_run_state(run_id, state_of(end["status"], end.get("reason") or ""), force=True)
                return
            time.sleep(0.2)


def _pages(read: Any, where: Any, size: int = 200) -> Iterator[Any]:
    offset = 0
    while page := read(flow_run_filter=where, limit=size, offset=offset):
        yield from page
        offset += size


def close_dead(state: State, home: Path, current: str) -> None:
    """Set flow runs Crashed that a dead driver of this home left behind."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        FlowRunFilterState,
        FlowRunFilterStateType,
        FlowRunFilterTags,
    )
    from prefect.client.schemas.objects import StateType

    open_types = [StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED]
    kinds = FlowRunFilterState(type=FlowRunFilterStateType(any_=open_types))
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[home_tag(home)]), state=kinds)
        )
        for run_ in found:
            if run_.name == current or alive(state, run_.name):
                continue
            gone = state_of("crashed", "the process that drove this run is gone")
            where = FlowRunFilter(id=FlowRunFilterId(any_=[run_.id]))
            for r in _pages(client.read_task_runs, where):
                if r.state is None or not r.state.is_final():
                    client.set_task_run_state(r.id, gone, force=True)
            client.set_flow_run_state(run_.id, gone, force=True)


def alive(state: State, execution: str) -> bool:
    """Return whether an execution still has its driver."""
    for path in state.home.glob(f"programs/*/executions/{execution}.json"):
        last = state.last(path.parents[1].name)
        return last is not None and last.execution == execution and last.state == "running"
    return False


def main(arguments: list[str]) -> int:
    """Mirror one execution until it is over. Returns 1, with a sentence on stdout, where Prefect refused."""
    home, name, execution = Path(arguments[0]), arguments[1], arguments[2]
    os.nice(5)
    state = State(home)
    record = state.last(name)
    wanted = json.loads(sys.stdin.readline() or "[]")
    if record is None or record.execution != execution or (data := state.plan(record.plan)) is None:
        sys.stdout.write(f"no record of execution {execution}\n")
        return 1
    plan = plan_from(data)
    plan = replace(plan, nodes=tuple(n for n in plan.nodes if n.id in wanted or n.id in record.nodes))
    board = Board(state, record, plan)
    threading.Thread(target=board.follow, daemon=True).start()
    use: services.Use | None = None
    try:
        use = services.prefect(home)
        os.environ.update({**services.quiet_environment(home), **SETTINGS, "PREFECT_API_URL": use.url})
        use.wait_ready(stop=lambda: board.over == "crashed")  # then there is nothing yet that would have to be told
        return _mirror(plan, record, board, use)
    except TutelageError as e:
        sys.stdout.write(f"{e}\n")
        return 1
    finally:
        if use is not None:
            use.release()


def _mirror(plan: Plan, record: RunRecord, board: Board, use: services.Use) -> int:
    with foreign("the Prefect server does not answer any more"):
        close_dead(State(use.home), use.home, record.execution)
        run(plan, record, board, use)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # client threads of a server that is gone must not hold the process
