"""A program runs by itself for some minutes: a true cron schedule, the servers of `tutelage up`, a person, a power cut."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import services
from tests.flows import nightly
from tests.flows.unattended import Site, wait

pytestmark = [pytest.mark.services, pytest.mark.slow]
KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
MORE = """\
schedule: {{each: {{cron: "* * * * *"}}}}
notify: {{on: [held, promoted, crashed], command: [{python}, -c, "{keep}", {told}]}}
"""


def tutelage(*arguments: str) -> str:
    """Run a command as a person does, and return what it printed."""
    done = subprocess.run([sys.executable, "-m", "flows.cli", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A project with the servers and the worker of `tutelage up`."""
    folder = tmp_path / "project"
    keep = KEEP.replace("\\", "\\\\")
    file = nightly.project(folder, MORE.format(python=sys.executable, keep=keep, told=tmp_path / "told"))
    monkeypatch.setenv("TUTELAGE_HOME", str(folder / ".tutelage"))
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    up(folder / ".tutelage")
    prefect = services.read(folder / ".tutelage", "prefect")
    assert prefect is not None
    try:
        yield Site(file, prefect.url)
    finally:
        tutelage("schedule", str(file), "--remove")
        tutelage("down")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def up(home: Path) -> None:
    ports = [p for name in ("prefect", "mlflow") for p in (f"--{name}-port", str(free_port()))]
    running = [s for s in services.records(home) if s.alive] if home.exists() else []
    tutelage("up", *([] if running else ports))


def next_end(site: Site, known: set[str], seconds: float = 300.0) -> Any:
    """Wait until a scheduled run that is not known yet has done something, and return it."""
    found: list[Any] = []

    def over() -> bool:
        found[:] = [
            r
            for r in site.runs("scheduled")
            if str(r.id) not in known and r.state.is_final() and r.state.name != "Skipped"
        ]
        return bool(found)

    wait(over, "the next scheduled run", seconds=seconds, every=1.0)
    known.update(str(r.id) for r in found)
    print(f"{found[0].name}: {found[0].state.name}: {found[0].state.message}", flush=True)
    return found[0]


def power_cut(site: Site) -> None:
    """Kill the run, its driver and the worker at once; the servers stay."""
    (attempt,) = (site.state.program("nightly") / "attempts").glob("*.json")
    run = int(json.loads(attempt.read_text())["process"]["pid"])
    driver = site.driver()
    site.kill_worker()
    for pid in (run, driver):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_program_runs_by_itself_is_killed_and_asks_a_person(site: Site, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    known: set[str] = set()
    assert "done (1 to create)" in tutelage("schedule", str(site.file), "--apply")

    first = next_end(site, known)
    assert first.state.name == "Held"
    assert first.auto_scheduled
    assert "approved by Ada" in tutelage("approve", "nightly", "ship", "--by", "Ada", "--reason", "read them all")
    second = next_end(site, known)
    assert second.state.name == "Completed"
    assert next_end(site, known).state.name == "NothingToDo"

    nightly.other_demonstrations(site.file, seed=2)  # another candidate
    nightly.problems(site.file.parent, nightly.MANY, seed=2)  # and other evidence
    wait(lambda: site.nodes_done() >= 2, "the third run to be at work", seconds=180, every=0.05)
    power_cut(site)
    killed = site.state.last("nightly")
    assert killed is not None
    time.sleep(125.0)  # two runs come due that nothing takes; only the newer one is made up for
    up(site.home)
    fourth = next_end(site, known)
    while fourth.state.name == "Crashed":  # the one that was killed
        fourth = next_end(site, known)
    assert fourth.state.name == "Completed"
    assert int(re.findall(r"(\d+) reused", fourth.state.message)[0]) >= 2
    assert next_end(site, known).state.name == "NothingToDo"

    states = [r.state.name for r in site.runs("scheduled")]
    assert states.count("Crashed") == 1
    assert "Skipped" in states  # the older of those that were late
    assert [r.state.name for r in site.runs("approve")] == ["Approved"]
    rows = json.loads(tutelage("status", "nightly", "--runs", "--json"))
    assert {"held", "done", "crashed", "nothing to do"} == {r["state"] for r in rows}
    assert {r["schedule"] for r in rows} == {"each"}
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [e["event"] for e in told] == ["held", "promoted", "crashed", "promoted"]
    uri = services.tracking_uri(site.home)
    assert uri.startswith("http://")
    mlflow = MlflowClient(uri)
    experiment = mlflow.get_experiment_by_name("nightly")
    assert experiment is not None
    parents = [r for r in mlflow.search_runs([experiment.experiment_id]) if "mlflow.parentRunId" not in r.data.tags]
    shown = {r.info.run_name: r.info.status for r in parents}
    worked = [r["execution"] for r in rows if r["state"] != "nothing to do"]
    assert set(worked) <= set(shown)
    assert shown[killed.execution] == "KILLED"
    print(json.dumps({"prefect": states, "mlflow": shown, "status": [r["state"] for r in rows]}, indent=1))
