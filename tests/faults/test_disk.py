"""Full disks (FM-08 to FM-12): named with path and bytes, nothing is lost, nothing more is bought."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.commands import processes, tutelage
from tests.faults.running import CHAIN, EVERY, MODEL, calls, redone, resumes, run, snapshot
from tests.faults.small_disk_teacher import COUNT, IN_FLIGHT
from tests.parts import installed, lacking
from tests.tasks.teachers import api
from tests.tasks.teachers.api import serving


def _on_a_small_disk(tmp_path: Path, free_kb: int, program: dict[str, Any] = CHAIN, **pads: int) -> dict[str, Any]:
    """Return how a run on a full disk went, and the next one after space was freed; what is left lies in `out`."""
    (tmp_path / "disk").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TUTELAGE_", "FAULT_"))}
    env |= {f"FAULT_PAD_{k.upper()}": str(v) for k, v in pads.items()}
    env["FAULT_OPTIONS"] = json.dumps(program["options"])
    return _inside("small_disk", [str(tmp_path / "disk" / "home"), str(free_kb), str(tmp_path / "out")], env)


def _inside(module: str, arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Return what a module of this folder tells that was run with a mount namespace of its own."""
    command = [installed("unshare"), "-Urm", sys.executable, "-m", f"tests.faults.{module}", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0 and "unshare" in done.stderr:
        lacking(f"unshare ({done.stderr.strip()})")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    if "skip" in told:
        lacking(told["skip"])
    return told


def _named_and_made_up_for(told: dict[str, Any], tmp_path: Path, ref: dict[str, Any], node: str, file: str) -> None:
    code, out, err = told["first"]
    assert code == 5, out + err
    line = next(x for x in out.splitlines() if x.startswith(f"{node} failed"))
    assert "disk full" in line
    assert file in line
    assert "bytes needed" in line
    assert "Traceback" not in out + err
    assert told["second"][0] == 0, told["second"]
    assert snapshot(tmp_path / "out") == ref


def test_fm_08_full_while_rollouts_are_kept(tmp_path: Path, ref: dict[str, Any]):
    told = _on_a_small_disk(tmp_path, 500, rollout=50_000)
    _named_and_made_up_for(told, tmp_path, ref, "rollouts", "trajectories.jsonl")
    assert told["kept"] >= 24 + 2
    assert told["paid"] - told["kept"] <= 4  # what was in flight, and nothing more
    assert calls(tmp_path / "out").total() == 48 + told["paid"] - told["kept"]


@pytest.mark.slow
def test_fm_09_full_while_a_checkpoint_is_written(tmp_path: Path):
    """A real model and the product's own checkpoints: the one before is whole and used, and no step is lost beyond it."""
    assert run(tmp_path / "undisturbed", **MODEL)[0] == 0
    told = _on_a_small_disk(tmp_path, 900, MODEL, checkpoint=250_000)
    _named_and_made_up_for(told, tmp_path, snapshot(tmp_path / "undisturbed"), "learn", "state.json")
    assert redone(tmp_path / "out") <= EVERY
    assert resumes(tmp_path / "out") == 1


def test_fm_10_a_reply_that_cannot_be_kept_is_not_bought(tmp_path: Path, ref: dict[str, Any]):
    told = _on_a_small_disk(tmp_path, 300, reply=50_000)
    _named_and_made_up_for(told, tmp_path, ref, "replies", "calls.jsonl")
    assert told["paid"] <= told["kept"] + 4


def test_fm_10_a_teachers_answer_that_cannot_be_kept_ends_the_asking(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    reply = json.dumps({"score": {"right": 8}, "why": "x" * 50_000})
    with serving(api.slow(api.says(reply), 0.02)) as server:
        told = _inside("small_disk_teacher", [str(tmp_path / "disk"), "300", server.url], dict(os.environ))
    assert "disk full" in told["first"]
    assert "calls.jsonl" in told["first"]
    assert "bytes needed" in told["first"]
    assert 3 <= told["kept"] < COUNT
    bought = sum(server.seen.keys.values()) - told["asked"]
    assert bought - told["kept"] <= IN_FLIGHT, "what was in flight, and nothing more"
    assert (told["answered"], told["asked"]) == (COUNT, COUNT - told["kept"])


@pytest.mark.parametrize("fault", ["before_rollout:5:enospc", "before_checkpoint:2:enospc", "after_write:7:enospc"])
def test_fm_08_09_a_full_disk_is_named_wherever_it_is_met(fault: str, tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    code, out, err = run(home, TUTELAGE_FAULT=fault, **CHAIN)  # each process counts alone
    assert code == 5, out + err
    assert "disk full" in out + err
    assert "Traceback" not in out + err
    assert run(home, **CHAIN)[0] == 0
    assert snapshot(home) == ref


def test_fm_08_a_file_size_limit_stops_the_stage_with_the_path_and_the_bytes_needed(
    tmp_path: Path, ref: dict[str, Any]
):
    home = tmp_path / "home"
    limit = (6000, resource.RLIM_INFINITY)
    code, out, _ = run(home, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit), **CHAIN)
    assert code == 5
    line = next(x for x in out.splitlines() if x.startswith("replies failed"))
    assert "calls.jsonl" in line
    assert "bytes needed" in line
    assert run(home, **CHAIN)[0] == 0
    assert snapshot(home) == ref


@pytest.mark.slow
@pytest.mark.services
def test_fm_11_full_where_only_the_tracking_lies(tmp_path: Path):
    """The folders of MLflow, DVC and the recorder cannot be written; the run goes on and says so at its end."""
    home = tmp_path / "home"
    for name in ("recorder", "mlflow", "dvc", "executions"):
        (home / name).mkdir(parents=True)
        (home / name).rmdir()
        (home / name).write_text("")  # where a folder should be
    part = ("run", "specs/programs/quickstart.yaml", "--until", "data.golden")
    told = tutelage(*part, home=home).must(0, "data.golden")
    once = "metrics and data versions are not recorded"
    assert (told.err.count(once), told.out.count(once)) == (1, 1)  # when it happens, and at the end
    for pid in processes(home):
        os.kill(pid, 9)


def test_fm_12_less_space_than_the_plan_needs_is_refused_with_both_numbers(tmp_path: Path):
    options = {"campaign": {"disk_mb": 1e9}}
    code, out, err = run(tmp_path / "home", options=options)
    assert code == 5
    assert "MB free, the plan needs about 1000000000 MB" in err
    assert not calls(tmp_path / "home")
    assert "Traceback" not in out + err
