"""Runs as a real Prefect server shows them; a server that is gone holds nothing up."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import recorder, services
from flows.showing import plan_table, slug
from tests.flows.toy_program import plan, run

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.Use]:
    """One Prefect server for this module."""
    home = tmp_path_factory.mktemp("prefect") / ".tutelage"
    use = services.start(home, "prefect")
    use.wait_ready(110)
    yield use
    use.release()


@pytest.fixture
def home(server: services.Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose runs use that server and record nothing else."""
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    monkeypatch.setattr(recorder, "start", lambda home: None)
    monkeypatch.setattr(recorder, "drain", lambda home, execution, timeout: [])
    return tmp_path / ".tutelage"


def ask(server: services.Use, what: str, **query: Any) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{server.url}/{what}/filter", json.dumps(query).encode(), {"content-type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
        return json.loads(reply.read())


def shown(server: services.Use, execution: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the flow run of an execution, and the names of its tasks' states."""
    (flow,) = ask(server, "flow_runs", flow_runs={"name": {"any_": [execution]}})
    tasks = ask(server, "task_runs", flow_runs={"id": {"any_": [flow["id"]]}})
    return flow, {t["name"]: t["state_name"] for t in tasks}


def test_every_node_shows_under_its_name_with_what_became_of_it(server: services.Use, home: Path) -> None:
    before = run(home, plan(), services=False)  # the first nodes are there already
    finish = run(home, plan("fail"), services=True)
    assert before.exit_code == 0
    assert (finish.exit_code, finish.notes) == (3, [])
    flow, tasks = shown(server, finish.record.execution)
    assert flow["state_name"] == "GateFailed"
    assert flow["state"]["message"] == "gate failed: gate.ship"
    assert flow["parameters"] == {"program": "toy", "plan_digest": finish.record.plan}
    assert tasks["teach"] == "Reused"
    assert tasks["eval.teach.hidden"] == "Reused"
    assert (tasks["gate.ship"], tasks["promote.ship"], tasks["report"]) == ("GateFailed", "Skipped", "Completed")
    assert set(tasks) == {n.id for n in plan()}
    artifacts = {a["key"]: a["data"] for a in ask(server, "artifacts", flow_runs={"id": {"any_": [flow["id"]]}})}
    assert set(artifacts) == {"toy-plan", "toy-progress", "toy-gate-ship"}
    assert "| teach | train.sft |" in artifacts["toy-plan"]
    assert float(artifacts["toy-progress"]) == 100.0
    assert json.loads(artifacts["toy-gate-ship"])[0]["metric"] == "success"


def test_a_failed_node_blocks_what_needs_it_and_nothing_else(server: services.Use, home: Path) -> None:
    finish = run(home, plan(name="toy-fails", fail=True), services=True)
    flow, tasks = shown(server, finish.record.execution)
    assert finish.exit_code == 5
    assert (flow["state_name"], tasks["teach"]) == ("Failed", "Failed")
    assert (tasks["eval.init.hidden"], tasks["eval.teach.hidden"]) == ("Completed", "Blocked")


_DRIVER = """
import os, sys
from pathlib import Path
from flows import recorder
from tests.flows.toy_program import plan, run
recorder.start = lambda home: None
recorder.drain = lambda home, execution, timeout: []
finish = run(Path(sys.argv[1]), plan(name=sys.argv[2], until=sys.argv[3]), services=True)
print(finish.record.execution, finish.exit_code, *finish.notes, sep="\\n")
"""


def driver(home: Path, name: str, until: Path) -> "subprocess.Popen[str]":
    """Start a run whose stage goes on until a file is there."""
    command = [sys.executable, "-c", _DRIVER, str(home), name, str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def wait_for_task(server: services.Use, flow: str, task: str) -> str:
    """Return the name of the flow run once its task runs."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = ask(server, "task_runs", flows={"name": {"any_": [flow]}}, task_runs={"name": {"any_": [task]}})
        if found and found[0]["state_name"] == "Running":
            (run_,) = ask(server, "flow_runs", flow_runs={"id": {"any_": [found[0]["flow_run_id"]]}})
            return run_["name"]
        time.sleep(0.1)
    raise AssertionError(f"{task} never ran")


def test_a_killed_driver_is_shown_as_crashed_at_once(server: services.Use, home: Path, tmp_path: Path) -> None:
    process = driver(home, "toy-killed", tmp_path / "never")
    execution = wait_for_task(server, "toy-killed", "teach")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until = time.monotonic() + 20
    while (state := shown(server, execution))[0]["state_name"] != "Crashed":
        assert time.monotonic() < until, state
        time.sleep(0.1)
    assert state[1]["teach"] == "Crashed"


def test_an_address_where_nothing_answers_is_told_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    finish = run(home, plan(), services=True)
    assert finish.exit_code == 0
    assert len(finish.notes) == 1
    assert "the run goes on without Prefect: PREFECT_API_URL: no Prefect server answers at" in finish.notes[0]


def test_the_plan_as_a_table() -> None:
    table = plan_table(plan(), "0123456789abcdef")
    assert "plan `0123456789ab` · 9 nodes" in table
    assert "| gate.ship | gate | eval.teach.hidden | 0 | - |" in table
    assert slug("Toy gate.ship_2") == "toy-gate-ship-2"


def test_a_server_that_goes_for_good_costs_nothing_but_a_sentence(
    server: services.Use, home: Path, tmp_path: Path
) -> None:
    process = driver(home, "toy-alone", tmp_path / "go")
    wait_for_task(server, "toy-alone", "teach")
    found = services.read(server.home, "prefect")
    assert found is not None
    assert found.process is not None
    os.killpg(found.process.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    began = time.monotonic()
    told = process.communicate(timeout=60)[0].splitlines()
    assert time.monotonic() - began < 30.0
    assert told[1] == "0"
    assert len(told) == 3
    assert told[2].startswith("the run goes on without Prefect: ")
