"""Schedules as a real Prefect server keeps them, and runs as a real worker carries them out."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.actions import WorkPoolUpdate

from flows.cli import main
from flows.deployments import ENTRYPOINT, POOL, client, code_name, deployed, queue
from flows.leases import driver_lease
from flows.registry import champion
from flows.scheduling import superseded
from tests.flows import nightly, unattended
from tests.flows.unattended import Site

pytestmark = pytest.mark.services
TWO = """\
schedule:
  nightly: {cron: "0 3 * * *"}
  weekly: {cron: "0 5 * * sun", timezone: Europe/Berlin, overlap: wait, active: no}
"""
KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\\\n')"


def hook(file: Path) -> str:
    return f'notify: {{on: [run_failed], command: [{sys.executable}, -c, "{KEEP}", {file}]}}\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A project whose schedules never come due while the tests run: runs are asked for by hand."""
    folder = tmp_path_factory.mktemp("unattended")
    with unattended.site(folder / "project", TWO + hook(folder / "told")) as made:
        made.start_worker()
        yield made


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["schedule", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def done(data: dict[str, Any]) -> dict[str, str]:
    return {c["schedule"]: c["do"] for c in data["schedules"]}


def test_schedules_are_created_changed_and_deleted_by_name(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    text = site.file.read_text()
    assert done(asked(capsys, str(site.file))) == {"nightly": "create", "weekly": "create"}
    assert main(["schedule", str(site.file), "--apply"]) == 0
    assert "nightly: done (2 to create)" in capsys.readouterr().out
    with client(site.home, site.url) as found:
        there = deployed(found, "nightly")
        assert there.entrypoint == ENTRYPOINT
        assert there.version == code_name()
        assert there.schedules["nightly"][1]["active"] is True
        assert there.schedules["weekly"][1] == {
            "cron": "0 5 * * sun", "timezone": "Europe/Berlin", "overlap": "wait", "catchup": "latest",
            "rounds_only": False, "active": False,
        }  # fmt: skip
    assert done(asked(capsys, str(site.file), "--apply")) == {"nightly": "keep", "weekly": "keep"}
    site.file.write_text(text.replace("0 3 * * *", "30 3 * * *").replace("weekly:", "yearly:"))
    shown = asked(capsys, str(site.file), "--apply")
    assert done(shown) == {"nightly": "update", "yearly": "create", "weekly": "delete"}
    assert shown["schedules"][0]["fields"] == {"cron": {"from": "0 3 * * *", "to": "30 3 * * *"}}
    with client(site.home, site.url) as found:
        assert set(deployed(found, "nightly").schedules) == {"nightly", "yearly"}
        for slug, (schedule, _) in deployed(found, "nightly").schedules.items():  # changed by hand, in Prefect's page
            found.update_deployment_schedule(there.id, schedule, active=slug == "yearly")
    assert done(asked(capsys, str(site.file))) == {"nightly": "update", "yearly": "update"}
    site.file.write_text(text)
    asked(capsys, str(site.file), "--apply")
    assert main(["schedule", str(site.file)]) == 0
    assert "nothing to change, 2 schedules are as declared" in capsys.readouterr().out


def test_what_is_paused_in_prefects_page_is_shown_and_undone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    asked(capsys, str(site.file), "--apply")
    with client(site.home, site.url) as found:
        found.pause_deployment(deployed(found, "nightly").id)
    shown = asked(capsys, str(site.file))
    assert shown["deployment"] == {"paused": {"from": True, "to": False}}
    assert main(["schedule", str(site.file)]) == 0
    assert "the deployment is to be updated; nothing was changed" in capsys.readouterr().out
    asked(capsys, str(site.file), "--apply")
    assert asked(capsys, str(site.file))["deployment"] == {}
    with client(site.home, site.url) as found:
        assert deployed(found, "nightly").paused is False
        found.update_work_pool(POOL, WorkPoolUpdate(is_paused=True))
        try:
            assert main(["schedule", str(site.file)]) == 0
            assert "is paused in Prefect; `prefect work-pool resume tutelage`" in capsys.readouterr().err
        finally:
            found.update_work_pool(POOL, WorkPoolUpdate(is_paused=False))


def test_the_name_of_another_projects_program_is_not_taken(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(capsys, str(site.file), "--apply")
    other = nightly.project(tmp_path / "other", TWO)
    monkeypatch.setenv("TUTELAGE_HOME", str(other.parent / ".tutelage"))
    assert main(["schedule", str(other), "--apply"]) == 2
    assert "no Prefect server stays for" in capsys.readouterr().err
    monkeypatch.setenv("PREFECT_API_URL", site.url)
    assert main(["schedule", str(other), "--apply"]) == 2
    assert f"belongs to {site.home}" in capsys.readouterr().err


@pytest.mark.slow
def test_late_runs_a_killed_one_a_held_gate_its_answer_and_nothing_to_do(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(capsys, str(site.file), "--apply")
    *late, killed = [site.trigger(ago=seconds, schedule="nightly") for seconds in (900, 600, 300)]
    process = site.process(killed)
    unattended.wait(lambda: site.nodes_done() >= 2, "the first nodes", every=0.05)
    driver = site.driver()
    os.kill(
        driver, signal.SIGSTOP
    )  # the newest run goes on until the late ones have looked, however slow the machine is
    for name, message in [site.ended(run) for run in late]:
        assert name == "Skipped"
        assert "(catchup: latest)" in message
    os.kill(process, signal.SIGKILL)
    os.kill(driver, signal.SIGCONT)
    assert site.ended(killed)[0] == "Crashed"
    unattended.wait(lambda: not site.driven, "the driver to stop")
    name, message = site.ended(site.trigger())
    assert name == "Held", message
    assert " reused" in message
    assert "tutelage approve nightly" in message
    assert main(["approve", "nightly", "--by", "Ada", "--reason", "fine"]) == 0
    assert site.ended(site.trigger())[0] == "Completed"
    assert champion(site.home, "nightly") is not None
    last = site.trigger()
    name, message = site.ended(last)
    assert (name, "everything is as it was" in message) == ("NothingToDo", True)
    run = next(r for r in site.runs() if str(r.id) == last)
    assert run.total_run_time.total_seconds() < 15.0
    (answer,) = site.runs("approve")
    assert (answer.state.name, answer.parameters["by"]) == ("Approved", "Ada")
    assert {r.state.name for r in site.runs("nightly")} >= {"Held", "Completed"}  # one per execution that did something
    capsys.readouterr()
    assert main(["status", "nightly", "--runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [r["state"] for r in rows][1:] == ["held", "done", "nothing to do"]
    assert rows[0]["state"] in ("interrupted", "crashed")
    assert [r["schedule"] for r in rows] == ["nightly", "by-hand", "by-hand", "by-hand"]


def test_a_run_beside_another_is_skipped_and_a_late_one_where_so_declared(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(capsys, str(site.file), "--apply")
    with driver_lease(site.state.program("nightly") / "lease", "nightly"):
        busy, never = site.trigger(), site.trigger(ago=400, catchup="none")
        name, message = site.ended(busy)
        assert name == "Skipped"
        assert f"overlap: process {os.getpid()}" in message
        name, message = site.ended(never)
        assert name == "Skipped"
        assert "(catchup: none)" in message


@pytest.mark.slow
def test_a_late_run_gives_way_only_to_one_that_will_run(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    asked(capsys, str(site.file), "--apply")
    with client(site.home, site.url) as found, driver_lease(site.state.program("nightly") / "lease", "nightly"):
        own = found.read_work_queue_by_name(queue(site.home), work_pool_name=POOL)
        found.update_work_queue(own.id, is_paused=True)
        try:
            late, never = site.trigger(ago=600), site.trigger(ago=400, catchup="none")
            run = found.read_flow_run(late)
            assert superseded(found, run, taken=False) is None, "the newer run is too late for itself"
            in_time = site.trigger(ago=1)
            assert "does what there is to do" in str(superseded(found, run, taken=False))
            assert superseded(found, run, taken=True) is None, "the newer run gives way to the driver at work"
            found.delete_flow_run(in_time)
            rounds = site.trigger(ago=1, rounds_only=True)
            assert superseded(found, run, taken=False) is None, "the newer run leaves the main part out"
            assert "does what there is" in str(
                superseded(found, run.model_copy(update={"parameters": {"rounds_only": True}}), taken=False)
            )
            found.delete_flow_run(rounds)
        finally:
            found.update_work_queue(own.id, is_paused=False)
        name, message = site.ended(never)
        assert (name, "(catchup: none)" in message) == ("Skipped", True)
        name, message = site.ended(late)
        assert (name, message[:8]) == ("Skipped", "overlap:"), "it was to run, and another driver was at work"


@pytest.mark.slow
def test_a_run_that_is_never_driven_is_told(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked(capsys, str(site.file), "--apply")
    text, recorded = site.file.read_text(), site.home.parent.parent / "told"
    name, message = site.ended(site.trigger(rounds_only=True))
    assert (name, "rounds only, but the program has no flywheel" in message) == ("Failed", True)
    before = len(told(recorded))
    try:
        site.file.write_text("program: [")
        name, message = site.ended(site.trigger(schedule="nightly"))
        assert name == "Failed"
        (event,) = told(recorded)[before:]  # the hooks that the deployment recorded
        assert (event["event"], event["program"], event["schedule"]) == ("run_failed", "nightly", "nightly")
        assert (event["execution"], event["node"], event["exit_code"]) == (None, None, None)
        assert event["reason"] == message
        assert f"{site.file}:2:1: not YAML" in message
        assert event["what_to_do"] == f"tutelage plan {site.file}"
        site.file.write_text(text.replace(str(recorded), str(tmp_path / "now")))
        (site.home / "answers" / "nightly").mkdir(parents=True, exist_ok=True)
        damaged = site.home / "answers" / "nightly" / "gate.ship.damaged.json"
        damaged.write_text("{")
        assert site.ended(site.trigger())[0] == "Failed"
        (event,) = told(tmp_path / "now")  # those of the file
        assert "damaged answer" in event["reason"]
        damaged.unlink()
    finally:
        site.file.write_text(text)
    assert len(told(recorded)) == before + 1


def test_a_worker_with_other_code_refuses(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate

    asked(capsys, str(site.file), "--apply")
    with client(site.home, site.url) as found:
        there = deployed(found, "nightly")
        found.update_deployment(there.id, DeploymentUpdate(parameters={**there.parameters, "code": "0.0.1 abc"}))
    name, message = site.ended(site.trigger())
    assert name == "Refused"
    assert f"made with tutelage 0.0.1 abc, this worker has {code_name()}" in message
    event = told(site.home.parent.parent / "told")[-1]
    assert (event["event"], event["reason"]) == ("run_failed", message)
    assert event["what_to_do"] == f"tutelage schedule {site.file} --apply"
    assert asked(capsys, str(site.file), "--apply")["deployment"]["code"]["from"] == "0.0.1 abc"
    assert done(asked(capsys, "nightly", "--remove")) == {"nightly": "delete", "weekly": "delete"}
    with client(site.home, site.url) as found:
        assert deployed(found, "nightly").id is None


def test_without_a_server_that_stays_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = nightly.project(tmp_path / "alone", TWO)
    monkeypatch.setenv("TUTELAGE_HOME", str(file.parent / ".tutelage"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert main(["schedule", str(file)]) == 2
    assert "start both with `tutelage up`" in capsys.readouterr().err
