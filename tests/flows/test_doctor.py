"""`tutelage doctor`: each thing that can be wrong is found, with what to do; --fix clears what is nobody's, and no more."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from flows import pools, services
from flows.checkup import holders, kept, machine
from flows.checkup.findings import Finding
from flows.commands import doctor
from flows.durable import Ledger
from flows.leases import Lease, this_process
from flows.reconcile import reconcile
from flows.registry import Candidate, promote
from flows.state import State
from tests.faults.commands import tutelage
from tests.faults.running import here


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a finished run."""
    home = tmp_path / "home"
    assert here(home).exit_code == 0
    return home


@pytest.fixture
def gone() -> dict[str, Any]:
    """A process that was here and is not any more."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = this_process(child.pid).to_dict()
    child.communicate(b"\n")
    return known


@pytest.fixture
def alive() -> Iterator[dict[str, Any]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield this_process(child.pid).to_dict()
    child.communicate(b"\n")


def _one(found: Iterator[Finding], level: str) -> Finding:
    """Return the one finding of a level; each that is not `ok` says what to do."""
    all_ = list(found)
    assert all(f.do for f in all_ if f.level != "ok"), all_
    (one,) = [f for f in all_ if f.level == level]
    return one


def _bad(found: Iterator[Finding]) -> list[Finding]:
    return [f for f in found if f.level != "ok"]


def test_a_home_that_is_well_has_nothing_wrong_and_is_not_changed(home: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in home.rglob("*")}
    found = list(doctor.findings(home))
    assert [f for f in found if f.level == "wrong"] == []
    assert {"versions", "git", "disk", "ports", "leases", "outputs", "records", "sending"} <= {f.check for f in found}
    assert {p: p.stat().st_mtime_ns for p in home.rglob("*")} == before
    assert "9 nodes compared with their receipts" in _one(kept.nodes(State(home), contents=True), "ok").what


def test_a_place_where_nothing_ran_is_looked_at_too(tmp_path: Path) -> None:
    told = tutelage("doctor", "--json", home=tmp_path / "none", cwd=tmp_path).must(0)
    data = json.loads(told.out)
    assert data["ok"]
    assert not (tmp_path / "none").exists()


def test_versions_that_are_other_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _one(machine.versions(), "ok").what.startswith("python 3.")
    real = metadata.version

    def other(name: str) -> str:
        if name == "dvc":
            raise metadata.PackageNotFoundError(name)
        return {"prefect": "2.0.0", "torch": "2.99.0"}.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", other)
    found = {f.where: f for f in _bad(machine.versions())}
    assert (found["dvc"].level, found["dvc"].what) == ("wrong", "is not installed")
    assert found["prefect"].level == "wrong"
    assert "2.0.0, asked for" in found["prefect"].what
    assert (found["torch"].level, "tested with" in found["torch"].what) == ("note", True)
    assert all("install again" in f.do for f in found.values())


def test_git_without_a_repository_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    said = " ".join(f.what for f in _bad(machine.git_identity(tmp_path / "home")))
    assert "no git repository" in said
    assert "no name or address" in said
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed" in _one(machine.git_identity(tmp_path / "home"), "wrong").what


def test_a_disk_that_is_nearly_full_or_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    for free, level in ((1e8, "wrong"), (1e9, "note"), (1e12, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(10**13, 0, int(free)))
        assert "GB free" in _one(machine.disk(tmp_path / "home"), level).what
    (tmp_path / "file").write_text("")
    assert "cannot be written" in _one(machine.disk(tmp_path / "file"), "wrong").what


def test_ports_that_are_taken_and_servers_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as s:
        s.bind((services.HOST, 0))
        s.listen()
        port = s.getsockname()[1]
        monkeypatch.setattr(services, "PORTS", {"mlflow": port})
        found = _one(machine.ports(tmp_path), "note")
    assert f"port {port} for mlflow: another process has it" in found.what
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:sk-canary@127.0.0.1:9")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    found = _one(machine.named_services(), "wrong")
    assert "no mlflow answers at http://127.0.0.1:9" in found.what
    assert "sk-canary" not in str(found)


def test_stale_leases_and_children_that_outlived_their_driver(
    home: Path, gone: dict[str, Any], alive: dict[str, Any]
) -> None:
    stale, orphan = sorted(home.glob("nodes/*/lease"))[:2]
    stale.write_text(json.dumps({"holder": gone}))
    orphan.write_text(json.dumps({"holder": gone, "child": alive, "node": "teach"}))
    found = {f.where: f for f in _bad(holders.leases(home))}
    assert (found[str(stale)].level, found[str(orphan)].level) == ("note", "wrong")
    assert f"process {gone['pid']} on" in found[str(stale)].what
    assert f"process {alive['pid']} of a dead run is still there (teach)" in found[str(orphan)].what
    held = Lease(home / "programs" / "reference" / "lease")
    assert held.try_acquire()
    told = tutelage("doctor", "--fix", "--json", home=home, cwd=home.parent).must(2)
    fixed = [f["where"] for f in json.loads(told.out)["findings"] if f["level"] == "fixed"]
    assert fixed == [str(stale)]
    assert stale.stat().st_size == 0
    assert orphan.stat().st_size > 0
    assert held.read()["holder"]["pid"] == os.getpid()
    held.release()


def test_servers_that_are_recorded_and_dead_or_silent_or_unreadable(
    home: Path, gone: dict[str, Any], alive: dict[str, Any]
) -> None:
    folder = home / "services"
    record = {"name": "mlflow", "url": "http://127.0.0.1:9", "port": 9, "owners": [], "kept": True}
    (folder / "mlflow.json").write_text(json.dumps({**record, "process": gone}))
    (folder / "prefect.json").write_text(json.dumps({**record, "name": "prefect", "process": alive}))
    (folder / "worker.json").write_text("{")
    found = {Path(f.where).name: f for f in _bad(holders.recorded_services(home))}
    assert "its process is gone" in found["mlflow.json"].what
    assert "does not answer" in found["127.0.0.1:9"].what
    assert found["worker.json"].level == "wrong"
    assert found["mlflow.json"].fix is not None
    assert found["mlflow.json"].fix()
    assert sorted(p.name for p in folder.glob("*.json")) == ["prefect.json", "worker.json"]


def test_nodes_that_are_half_done_or_failed(home: Path) -> None:
    for name in ("begun", "saved"):
        (home / "nodes" / name / "ckpt").mkdir(parents=True)
    (home / "nodes" / "saved" / "ckpt" / "step-020").mkdir()
    (home / "nodes" / "saved" / "progress.json").write_text('{"total": 30}')
    (home / "nodes" / "failed").mkdir()
    (home / "nodes" / "failed" / "failure.json").write_text('{"text": "the loss is not finite"}')
    found = {Path(f.where).name: f for f in _bad(kept.nodes(State(home), contents=True))}
    assert {f.level for f in found.values()} == {"note"}
    assert found["begun"].what == "begun and not ended"
    assert "checkpoint 20/30" in found["saved"].what
    assert "failed: the loss is not finite" in found["failed"].what


def test_damaged_receipts_and_outputs(home: Path) -> None:
    one, other = sorted(home.glob("nodes/*/out/records.jsonl"))
    one.write_bytes(one.read_bytes().replace(b"1", b"2", 1))
    (other.parents[1] / "receipt.json").write_text("{")
    found = sorted(f.what for f in _bad(kept.nodes(State(home), contents=True)))
    assert len(found) == 2
    assert any("sha256 differs" in text for text in found)
    assert any("damaged receipt" in text for text in found)
    assert len(_bad(kept.nodes(State(home), contents=False))) == 1  # --quick looks at sizes
    tutelage("doctor", home=home, cwd=home.parent).must(2, "2 wrong")
    tutelage("doctor", "--quick", home=home, cwd=home.parent).must(2, "1 wrong")


def test_what_interrupted_writes_left(home: Path, gone: dict[str, Any]) -> None:
    left = home / "nodes" / f".receipt.json.{gone['pid']}.1.tmp"
    left.mkdir()
    mine = home / "plans" / f".a.json.{os.getppid()}.1.tmp"
    mine.write_text("")
    found = _one(kept.left_over(home), "note")
    assert left.name in found.what
    told = tutelage("doctor", "--fix", home=home, cwd=home.parent).must(0, "1 fixed", "cleared just now")
    assert left.name in "".join(told.out.split())
    assert not left.exists()
    assert mine.exists()


def test_the_next_start_clears_whatever_an_interrupted_write_left(home: Path, gone: dict[str, Any]) -> None:
    places = [
        "", "answers/p", "evaluations/data", "served/k", "model-1/policy", "dvc/worktree/p", "dvc/repo/p", "teachers/p",
        "pools/p/regression", "registry/p/v1", "nodes/k/ckpt/state", "nodes/k/out", "programs/p/executions", "recorder",
    ]  # fmt: skip
    left = [home / place / f".a.{gone['pid']}.1.tmp" for place in places]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    theirs = home / "answers" / "p" / f".b.{os.getppid()}.1.tmp"  # of a writer that lives
    theirs.write_text("")
    named = {f.where for f in kept.left_over(home) if f.what.startswith("1 left")}
    assert named == {str(p.parent) for p in left}
    reconcile(State(home), "reference")
    assert [p for p in left if p.exists()] == []
    assert theirs.exists()
    assert list(kept.left_over(home)) == []


def test_weights_for_servers_go_with_their_node(home: Path) -> None:
    held, left = home / "served" / "held", home / "served" / "left"
    for folder in (held, left, home / "model-1"):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text("weights")
    code = f"from flows.leases import Lease; from pathlib import Path; print(Lease(Path({str(held / 'lease')!r})).try_acquire(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"True\n"
        found = {f.where for f in kept.left_over(home)}
        assert found == {str(left), str(home / "model-1")}
        reconcile(State(home), "reference")
        assert sorted(p.name for p in (home / "served").iterdir()) == ["held"]
        assert not (home / "model-1").exists()
        node.communicate(b"\n")
    reconcile(State(home), "reference")
    assert not list((home / "served").iterdir())


def test_every_kind_of_lease_is_looked_at(home: Path, gone: dict[str, Any]) -> None:
    names = [
        "answers/lock", "programs/reference/looks.lock", "services/model-1.lock", "services/lock", "teachers/p/calls.lock",
        "registry/.lock", "pools/.lock", "pools/.answers.lock", "dvc/lock", "recorder/lock", "device.lock", "served/k/lease",
    ]  # fmt: skip
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(json.dumps({"holder": gone}))
    foreign = home / "mlflow" / "x.lock"
    foreign.parent.mkdir()
    foreign.write_text("theirs")
    assert {f.where for f in _bad(holders.leases(home))} == {str(home / n) for n in names}


def test_records_and_plans_of_runs(home: Path, gone: dict[str, Any]) -> None:
    last = home / "programs" / "reference" / "last.json"
    good = json.loads(last.read_text())
    last.write_text(json.dumps({**good, "ended": None, "driver": gone}))
    assert "tutelage resume" in _one(kept.records(State(home)), "note").do
    last.write_text("{")
    assert "damaged record" in _one(kept.records(State(home)), "wrong").what
    last.write_text(json.dumps(good))
    looks = last.with_name("looks.jsonl")
    looks.write_text("[]\n")
    assert "looks.jsonl:1: found list" in _one(kept.records(State(home)), "wrong").what
    looks.unlink()
    for path in (home / "plans").glob("*.json"):
        path.unlink()
    assert "is gone or damaged" in _one(kept.records(State(home)), "wrong").what


def test_a_registry_that_does_not_fit_its_folders(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "model").write_text("weights")
    promote(home, "p", Candidate(policy, "teach"))
    assert _one(kept.registries(home), "ok").what == "1 versions, champion v1"
    (home / "registry" / "p" / "v7").mkdir()
    assert "does not name" in _one(kept.registries(home), "note").what
    path = home / "registry" / "p.json"
    good = path.read_text()
    path.write_text(good.replace('"champion": 1', '"champion": 3'))
    assert "champion names version 3" in _one(kept.registries(home), "wrong").what
    path.write_text(good)
    (home / "registry" / "p" / "v1" / "model").unlink()
    assert "is damaged or missing" in _one(kept.registries(home), "wrong").what
    path.write_text("{")
    assert "damaged registry" in _one(kept.registries(home), "wrong").what


def test_pools_that_are_damaged(home: Path) -> None:
    version = pools.publish(home, "p", "regression", [{"id": "a"}], {})
    assert _one(kept.published_pools(home), "ok").what == "1 records"
    (home / version.path / "records.jsonl").write_text("{}\n")
    assert "is damaged" in _one(kept.published_pools(home), "wrong").what


def test_databases_that_cannot_be_read(home: Path) -> None:
    path = services.mlflow_database(home)
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE runs (a)")
    db.close()
    assert "can be read" in _one(kept.databases(home), "ok").what
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    assert "locked" in _one(kept.databases(home), "note").what
    db.close()
    path.write_bytes(b"no database at all" * 100)
    assert "not a database" in _one(kept.databases(home), "wrong").what


def _git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_branch_of_data_that_is_not_ours_and_a_worktree_that_is_gone(home: Path) -> None:
    assert list(kept.data_versions(home)) == []
    _git(home.parent, "init", "-q", "-b", "main")
    _git(home.parent, "commit", "-q", "--allow-empty", "-m", "first")
    _git(home.parent, "branch", "data")
    assert "is not tutelage's" in _one(kept.data_versions(home), "wrong").what
    _git(home.parent, "branch", "-D", "data")
    from flows.databranch import prepare

    prepare(home, lambda _: None)
    assert "branch data, 1 commits" in _one(kept.data_versions(home), "ok").what
    shutil.rmtree(home / "dvc" / "worktree")
    assert "worktree" in _one(kept.data_versions(home), "note").what


def test_executions_that_are_not_wholly_sent(home: Path) -> None:
    for folder in ("executions", "recorder"):
        (home / folder).mkdir()
    for name in ("a", "b"):
        Ledger(home / "executions" / f"{name}.jsonl").append([{"event": "start"}])
    sent = Ledger(home / "recorder" / "sent.jsonl")
    sent.append([{"execution": "a", "what": "done", "value": None}])
    found = _one(kept.not_sent(home), "note")
    assert found.what == "not wholly sent to MLflow and DVC: b"
    assert "tutelage data sync" in found.do
    recorder = Lease(home / "recorder" / "lock")
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from flows.leases import Lease; from pathlib import Path; "
            f"print(Lease(Path({str(recorder.path)!r})).try_acquire(), flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"True\n"
    assert "are being sent" in _one(kept.not_sent(home), "ok").what
    child.communicate(b"\n")
    sent.append([{"execution": "b", "what": "done", "value": None}])
    assert "2 executions are sent" in _one(kept.not_sent(home), "ok").what
    sent.path.write_text("{\n{}\n")
    assert "damaged" in _one(kept.not_sent(home), "note").what
