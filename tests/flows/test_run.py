"""`run`, `resume`, `status` and `logs` as a person uses them; nodes have stand-in bodies, everything else is real."""

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import flows.commands.run
from flows.cli import main
from flows.drive import Finish, Request, drive
from flows.leases import driver_lease
from flows.nodes import Plan
from flows.scheduling import driver_command
from flows.smoke import smoke
from flows.state import State
from specs.loader import load_program
from specs.program import Program
from tests.faults.bodies import ENTRIES

PROGRAM = """\
program: tiny
policy: {init: {kind: scratch, tokenizer: {kind: bpe, train_on: demos}}}
environments: {desk: {kind: order_desk}}
data:
  demos: {kind: demonstrations, environment: desk, size: 60}
  golden: {kind: problems, environment: desk, split: golden, size: 100, role: golden}
verifiers: {order_state: {kind: environment_state}}
reward: {outcome: {order_state: 1.0}}
stages:
  - {id: teach, algorithm: {type: sft}, data: [demos]}
evaluation: {sets: [golden]}
gates:
  ship: {require: [{metric: success, set: golden, at_least: 0.1}], on_pass: promote}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with a program; bodies of nodes are those of the fault tests."""
    folder = tmp_path / "project"
    (folder / ".tutelage").mkdir(parents=True)
    (folder / "tiny.yaml").write_text(PROGRAM)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TUTELAGE_HOME", raising=False)
    entries = {**ENTRIES, "data.demonstrations": "data"}

    def stand_in(plan: Plan, state: State, request: Request) -> Finish:
        entry: Callable[[str], str] = lambda kind: f"tests.faults.bodies:{entries[kind]}"  # noqa: E731
        return drive(plan, state, replace(request, entry_for=entry, preload=()))

    monkeypatch.setattr(flows.commands.run, "drive", stand_in)
    return folder


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_a_run_says_how_it_went_and_its_repeat_has_nothing_to_do(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services"]) == 0
    out = capsys.readouterr().out
    assert "promote.ship" in out
    assert "gate: pass" in out
    assert "report: .tutelage/nodes/" in out
    assert "tiny: done in" in out
    assert main(["run", "tiny.yaml", "--no-services", "--json"]) == 0
    data = _json(capsys)
    assert {n["status"] for n in data["nodes"]} == {"reused"}
    assert data["exit_code"] == 0
    assert data["resume"] is None


def test_a_repeat_names_the_change_and_runs_what_follows_from_it(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services"]) == 0
    capsys.readouterr()
    assert main(["run", "tiny.yaml", "--no-services", "--set", "stages[0].algorithm.epochs=2"]) == 0
    seen = capsys.readouterr()
    assert "algorithm.epochs 1.0 -> 2.0" in seen.err
    assert "teach: started" in seen.err
    assert "data.demos: started" not in seen.err


def test_execution_settings_run_nothing_again(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services"]) == 0
    capsys.readouterr()
    assert main(["run", "tiny.yaml", "--no-services", "--json", "--set", "run.parallel=1"]) == 0
    assert {n["status"] for n in _json(capsys)["nodes"]} == {"reused"}


def test_resume_goes_on_with_what_was_asked(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services", "--until", "data.golden", "--set", "seed=3", "--json"]) == 0
    first = _json(capsys)
    assert main(["resume", "--no-services", "--json"]) == 0
    again = _json(capsys)
    status = {n["node"]: n["status"] for n in again["nodes"]}
    assert status["data.golden"] == "reused"
    assert status["teach"] == "left out"
    keys = [next(n["run_key"] for n in d["nodes"] if n["node"] == "data.golden") for d in (first, again)]
    assert keys[0] == keys[1]


def test_resume_without_a_run_says_what_to_do(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["resume"]) == 2
    assert "no program was run here yet; start one with `tutelage run" in capsys.readouterr().err


def test_a_stored_plan_that_no_longer_fits_is_refused(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services", "--until", "data.golden"]) == 0
    state = State(project / ".tutelage")
    record = state.last("tiny")
    assert record is not None
    stored = project / "plan.json"
    stored.write_text(json.dumps(state.plan(record.plan)))
    assert main(["run", "tiny.yaml", "--no-services", "--until", "data.golden", "--plan", "plan.json"]) == 0
    assert main(["run", "tiny.yaml", "--no-services", "--plan", "plan.json", "--set", "seed=3"]) == 6
    assert "plan.json: no longer what" in capsys.readouterr().err


def test_unknown_nodes_and_programs_are_told_with_near_names(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services", "--until", "teech"]) == 2
    assert "did you mean teach" in capsys.readouterr().err
    assert main(["status", "tinny"]) == 2
    assert "no run of tinny" in capsys.readouterr().err


def test_a_run_by_the_name_of_a_schedule_has_its_settings(project: Path, capsys: pytest.CaptureFixture[str]):
    every = '{nightly: {cron: "0 3 * * *"}, weekly: {cron: "0 5 * * sun", overlap: wait}}'
    (project / "tiny.yaml").write_text(f"{PROGRAM}schedule: {every}\n")
    run = ["run", "tiny.yaml", "--no-services", "--until", "data.golden", "--scheduled"]
    with driver_lease(State(project / ".tutelage").program("tiny") / "lease", "tiny") as held:
        assert main([*run, "nightly"]) == 9
        assert main([*run, "weekly", "--no-wait"]) == 9
        threading.Timer(0.5, held.release).start()
        assert main([*run, "weekly"]) == 0
    capsys.readouterr()
    assert main([*run, "weakly"]) == 2
    assert "found 'weakly', which is no schedule of" in (said := capsys.readouterr().err)
    assert "expected nightly or weekly; did you mean weekly?" in said
    assert main([*run, "by-hand"]) == 0, "so a run is called that somebody asked the deployment for"
    (project / "tiny.yaml").write_text(PROGRAM)
    assert main([*run, "nightly"]) == 2
    assert "which declares none" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [False, True])
def test_what_a_deployment_recorded_stands_before_what_the_file_declares(*, asked: bool):
    parser = argparse.ArgumentParser()
    flows.commands.run.configure(parser, "run")
    args = parser.parse_args(driver_command("tiny.yaml", "nightly", wait=asked, rounds_only=asked)[4:])
    assert (args.scheduled, args.wait, args.rounds_only) == ("nightly", asked, asked)


def test_status_and_logs_read_what_is_on_disk(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services"]) == 0
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    assert _json(capsys)["state"] == "ended"
    assert main(["status", "tiny.yaml"]) == 0
    assert "eval.teach.golden" in capsys.readouterr().out
    record = State(project / ".tutelage").last("tiny")
    assert record is not None
    log = State(project / ".tutelage").node(record.nodes["teach"]["run_key"]) / "log"
    log.write_text("".join(f"line {i}\n" for i in range(9)))
    assert main(["logs", "teach", "-n", "2"]) == 0
    assert capsys.readouterr().out == "line 7\nline 8\n"
    assert main(["logs", "teech"]) == 2
    assert "did you mean teach" in capsys.readouterr().err


def test_status_tells_a_crash_and_what_is_kept(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "tiny.yaml", "--no-services"]) == 0
    state = State(project / ".tutelage")
    record = state.last("tiny")
    assert record is not None
    node = state.node(record.nodes["teach"]["run_key"])
    (node / "receipt.json").unlink()
    (node / "ckpt" / "state" / "step-000000020").mkdir(parents=True)
    record.ended, record.exit_code = None, None
    record.driver["start"] = "1"
    record.nodes["teach"]["status"] = "running"
    state.save_record(record)
    (state.program("tiny") / "executions" / f"{record.execution}.jsonl").unlink()
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    data = _json(capsys)
    assert data["state"] == "crashed"
    teach = next(n for n in data["nodes"] if n["node"] == "teach")
    assert teach["status"] == "interrupted"
    assert teach["reason"] == "its driver died; checkpoint 20/30 is kept"
    assert data["resume"] == f"tutelage resume {project / 'tiny.yaml'}"


def test_a_repeat_imports_no_orchestrator_no_tracker_and_no_tensors(project: Path):
    assert main(["run", "tiny.yaml", "--no-services"]) == 0
    code = (
        "import sys\nfrom flows.cli import main\n"
        "assert main(['run', 'tiny.yaml', '--json']) == 0\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'prefect', 'mlflow', 'dvc', 'numpy'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "[]"
    assert not list((project / ".tutelage" / "services").iterdir())


@pytest.mark.parametrize("file", ["quickstart", "beginner", "smollm2_tools"])
def test_the_smallest_form_of_a_program_is_a_program_that_promotes_nothing(file: str):
    program = load_program(Path("specs/programs") / f"{file}.yaml").program
    small = smoke(program)
    assert isinstance(small, Program)
    assert small.program == f"{program.program}-smoke"
    assert all(g.on_pass == "nothing" for g in small.gates.values())
    assert [s.id for s in small.stages] == [s.id for s in program.stages]
