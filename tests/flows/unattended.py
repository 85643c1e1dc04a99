"""A project with a Prefect server and a worker that stay, and what one asks of them."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows import services, worker
from flows.deployments import client, deployed
from flows.leases import Lease
from flows.state import State
from tests.flows import nightly

SECONDS = 120.0


@dataclass
class Site:
    """The project, its program file and its server."""

    file: Path
    url: str

    @property
    def home(self) -> Path:
        return self.file.parent / ".tutelage"

    @property
    def state(self) -> State:
        return State(self.home)

    def trigger(self, *, ago: float = 0.0, **parameters: Any) -> str:
        """Ask for a run of the deployment that is due now, or was due some seconds ago; return its id."""
        from prefect.states import Scheduled

        when: Any = datetime.now(UTC) - timedelta(seconds=ago)
        with client(self.home, self.url) as found:
            there = deployed(found, "nightly")
            run = found.create_flow_run_from_deployment(
                there.id, state=Scheduled(scheduled_time=when), parameters=parameters
            )
        return str(run.id)

    def runs(self, flow: str | None = None) -> list[Any]:
        """Return the flow runs that are begun or over, in the order in which they were due."""
        from prefect.client.schemas.filters import FlowFilter, FlowFilterName

        where = None if flow is None else FlowFilter(name=FlowFilterName(any_=[flow]))
        with client(self.home, self.url) as found:
            every = found.read_flow_runs(flow_filter=where, limit=200)
        begun = [r for r in every if r.state is not None and r.state.type.value != "SCHEDULED"]
        return sorted(begun, key=lambda r: (r.expected_start_time, str(r.id)))

    def ended(self, run: str) -> tuple[str, str]:
        """Wait until a run is over and return the name and message of its state."""
        state: list[Any] = []

        def over() -> bool:
            with client(self.home, self.url) as found:
                state[:] = [found.read_flow_run(run).state]
            return state[0] is not None and state[0].is_final()

        wait(over, f"run {run} to end", every=0.5)
        return state[0].name, state[0].message or ""

    def process(self, run: str) -> int:
        """Wait until a run drives the program and return the pid of the run's process."""
        path = self.state.program("nightly") / "attempts" / f"{run}.json"
        wait(lambda: path.exists() and self.driven, f"run {run} to begin", every=0.05)
        return int(json.loads(path.read_text())["process"]["pid"])

    def nodes_done(self) -> int:
        """Return how many nodes the execution that runs now has completed; 0 while none runs."""
        record = self.state.last("nightly")
        if record is None or record.state != "running":
            return 0
        return sum(n["status"] == "completed" for n in record.nodes.values())

    @property
    def driven(self) -> bool:
        """Return whether a driver of the program lives."""
        return Lease(self.state.program("nightly") / "lease").held_elsewhere

    def driver(self) -> int:
        """Return the pid of the driver that holds the lease."""
        return int(json.loads((self.state.program("nightly") / "lease").read_text())["holder"]["pid"])

    def kill_worker(self) -> None:
        """Kill the worker's session outright, as a power cut would."""
        record = services.read(self.home, "worker")
        assert record is not None
        assert record.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(record.process.pid, signal.SIGKILL)

    def start_worker(self) -> None:
        """Start a worker that looks every second."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_WORKER_QUERY_SECONDS", "1")
            patch.setenv("PREFECT_WORKER_PREFETCH_SECONDS", "1")
            worker.start(self.home)

    def stop_worker(self) -> None:
        """End the worker and nothing else."""
        services.down(self.home, {"worker"})


def wait(what: Callable[[], bool], name: str, *, seconds: float = SECONDS, every: float = 0.2) -> None:
    """Wait for something."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"waited {seconds:.0f} s for {name}"
        time.sleep(every)


@contextmanager
def site(folder: Path, more: str) -> Iterator[Site]:
    """Yield a project whose server and worker are up."""
    file = nightly.project(folder, more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUTELAGE_HOME", str(folder / ".tutelage"))
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        State(folder / ".tutelage").prepare()
        try:
            use = services.start(folder / ".tutelage", "prefect", keep=True)
            use.wait_ready(110)
            yield Site(file, use.url)
        finally:
            services.down(folder / ".tutelage")
