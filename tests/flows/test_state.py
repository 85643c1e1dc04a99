"""Receipts, leases, records: what says that a node is done, and who is alive."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flows.leases import Lease, Process, driver_lease, process_from, this_process
from flows.reconcile import reconcile
from flows.state import NodeReceipt, RunRecord, State, exit_code, find_home, now
from specs.errors import BusyError, StateError
from tasks import processes
from tasks.processes import end, mark, spawn


def _receipt(key: str = "k" * 64, result: str = "completed", alias: str | None = None) -> NodeReceipt:
    return NodeReceipt("teach", "train.sft", key, "p", result, [], "", {"data": "d"}, {"loss": 0.5}, alias=alias)


def _sealed(home: Path, key: str = "k" * 64) -> State:
    state = State(home)
    state.prepare()
    out = state.node(key) / "out"
    (out / "notes").mkdir(parents=True)
    (out / "policy.json").write_text("{}")
    (out / "notes" / "time").write_text("1")
    state.seal(_receipt(key))
    return state


def test_a_receipt_holds_the_outputs_without_notes(tmp_path: Path):
    state = _sealed(tmp_path)
    receipt = state.receipt("k" * 64, deep=True)
    assert receipt is not None
    assert [(e.path, e.size) for e in receipt.outputs] == [("policy.json", 2)]
    assert state.out("k" * 64) == state.node("k" * 64) / "out"


def test_no_receipt_means_not_done(tmp_path: Path):
    state = _sealed(tmp_path)
    assert state.receipt("x" * 64) is None
    with pytest.raises(StateError, match="no valid receipt"):
        state.out("x" * 64)


def test_a_receipt_under_another_key_is_not_accepted(tmp_path: Path):
    state = _sealed(tmp_path)
    state.node("k" * 64).rename(state.node("m" * 64))
    assert state.receipt("m" * 64) is None
    assert "damaged receipt" in state.damage[0]


def test_sizes_are_always_compared_and_contents_when_asked(tmp_path: Path):
    state = _sealed(tmp_path)
    path = state.node("k" * 64) / "out" / "policy.json"
    path.write_text("[]")
    assert state.receipt("k" * 64) is not None
    assert state.receipt("k" * 64, deep=True, up_to=1) is not None
    assert state.receipt("k" * 64, deep=True) is None
    assert "sha256 differs" in state.damage[-1]
    aside = state.set_aside("k" * 64)
    assert aside is not None
    assert (aside / "out" / "policy.json").read_text() == "[]"
    assert state.set_aside("k" * 64) is None


def test_what_is_set_aside_takes_the_first_name_that_is_free(tmp_path: Path):
    state = _sealed(tmp_path)
    folder = state.node("k" * 64)
    for taken in ("damaged-1", "damaged-3"):
        (folder / taken).mkdir()  # somebody removed the second
    aside = state.set_aside("k" * 64)
    assert aside == folder / "damaged-2"
    assert sorted(p.name for p in folder.glob("damaged-*")) == ["damaged-1", "damaged-2", "damaged-3"]


def test_a_skipped_node_stands_for_another_and_falls_with_it(tmp_path: Path):
    state = _sealed(tmp_path)
    state.node("s" * 64).mkdir()
    state.seal(_receipt("s" * 64, "skipped", alias="k" * 64))
    assert state.out("s" * 64) == state.node("k" * 64) / "out"
    (state.node("k" * 64) / "out" / "policy.json").unlink()
    assert state.receipt("s" * 64) is None


def test_a_skipped_node_may_leave_nothing(tmp_path: Path):
    state = _sealed(tmp_path)
    state.node("s" * 64).mkdir()
    state.seal(_receipt("s" * 64, "skipped"))
    assert state.out("s" * 64) is None


def test_checkpoints_are_counted_until_the_node_is_sealed(tmp_path: Path):
    state = State(tmp_path)
    state.prepare()
    folder = state.node("c" * 64)
    for name in ("ckpt/step-000340", "ckpt/step-000300", "ckpt/.step-000360.1.1.tmp"):
        (folder / name).mkdir(parents=True)
    assert state.checkpoint_info("c" * 64) == (340, 0)
    (folder / "progress.json").write_text(json.dumps({"total": 1000}))
    assert state.checkpoint_info("c" * 64) == (340, 1000)
    (folder / "out").mkdir()
    state.seal(_receipt("c" * 64))
    assert state.checkpoint_info("c" * 64) is None


def _record(execution: str, driver: Process) -> RunRecord:
    return RunRecord(execution, "p", "p.yaml", {}, "d", {}, driver.to_dict(), now())


def test_a_smoke_run_is_well_whatever_its_gate_says():
    record = _record("e1", this_process())
    for code, told in ((None, None), (0, 0), (3, 0), (7, 0), (5, 5)):
        record.exit_code, record.arguments = code, {"smoke": True}
        assert exit_code(record) == told
        record.arguments = {"smoke": False}
        assert exit_code(record) == code


def test_records_say_running_crashed_or_ended(tmp_path: Path):
    state = State(tmp_path)
    state.prepare()
    assert state.last("p") is None
    record = _record("e1", this_process())
    state.save_record(record)
    state.ledger("p", "e1").append([{"node": "teach", "at": now(), "status": "completed", "run_key": "k"}])
    found = state.last("p")
    assert found is not None
    assert found.state == "running"
    assert found.nodes["teach"]["status"] == "completed"
    state.save_record(_record("e2", replace(this_process(), start="1")))
    found = state.last("p")
    assert found is not None
    assert found.state == "crashed"
    assert "ended without a word" in reconcile(state, "p")[0]
    found = state.last("p")
    assert found is not None
    assert found.state == "ended"


def test_a_damaged_record_is_named_and_not_used(tmp_path: Path):
    state = State(tmp_path)
    state.prepare()
    state.program("p").mkdir()
    (state.program("p") / "last.json").write_text('{"execution": 1}')
    assert state.last("p") is None
    assert "damaged record" in state.damage[0]


def test_plans_are_stored_once_under_their_digest(tmp_path: Path):
    state = State(tmp_path)
    state.prepare()
    assert state.save_plan({"b": 1, "a": 2}) == state.save_plan({"a": 2, "b": 1})
    assert state.plan(state.save_plan({"a": 2, "b": 1})) == {"a": 2, "b": 1}
    assert state.plan("0" * 64) is None


def test_too_little_space_is_refused_with_both_numbers(tmp_path: Path):
    with pytest.raises(StateError, match=r"has \d+ MB free, the plan needs about 1000000000 MB"):
        State(tmp_path).check_space(1e9)


def test_home_is_where_the_project_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TUTELAGE_HOME", raising=False)
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find_home(tmp_path / "a" / "b") == tmp_path / ".tutelage"
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "elsewhere"))
    assert find_home(tmp_path / "a") == tmp_path / "elsewhere"


def test_a_home_that_cannot_be_written_says_what_to_do(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="TUTELAGE_HOME"):
        State(tmp_path / "file").prepare()


def test_a_process_is_not_another_one_with_its_pid():
    me = this_process()
    assert me.alive
    assert not replace(me, start="1").alive
    assert not replace(me, boot="another").alive
    assert not replace(me, host="another").alive
    assert process_from(me.to_dict()) == me
    assert process_from({"pid": 1}) is None
    assert process_from(None) is None


def test_a_dead_holder_frees_its_lease_and_a_living_one_is_named(tmp_path: Path):
    path = tmp_path / "lease"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom flows.leases import Lease\n"
        f"assert Lease(Path({str(path)!r})).try_acquire()\nprint('held', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert Lease(path).held_elsewhere
        with pytest.raises(BusyError, match=f"process {holder.pid} on"), driver_lease(path, "p"):
            pass
        holder.kill()
    began = time.monotonic()
    with driver_lease(path, "p"):
        assert Lease(path).read()["program"] == "p"
    assert time.monotonic() - began < 0.5
    assert path.read_bytes() == b""


def test_a_copy_of_a_folder_at_work_leaves_the_processes_of_the_original_alone(tmp_path: Path):
    state = State(tmp_path)
    state.prepare()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        state.node("a").mkdir()
        held = {"holder": this_process().to_dict(), "node": "a", "child": this_process(child.pid).to_dict()}
        (state.node("a") / "lease").write_text(json.dumps(held))  # copied, so that nobody holds its lock
        assert reconcile(state, "p") == []
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_reconcile_ends_what_a_program_of_a_dead_run_left_in_another_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "_namespace", lambda: "pid:[of this test]")  # runs of other tests look as well
    state = State(tmp_path / "home")
    state.prepare()
    own = mark("x")
    gone = {name: value.replace(f"/{os.getpid()}/", "/999999999/") for name, value in own.items()}
    left, ours = (spawn([sys.executable, "-c", "import time; time.sleep(60)"], env=env) for env in (gone, own))
    try:
        assert reconcile(state, "p") == ["processes that a program of a dead run had left were ended: 1"]
        assert left.wait(5) == -9
        assert ours.poll() is None, "its owner lives"
    finally:
        end(left, ours)


def test_reconcile_ends_the_orphan_of_a_dead_run_and_spares_a_reused_pid(tmp_path: Path):
    state = State(tmp_path)
    state.prepare()
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for key, child in (("a", this_process(orphan.pid)), ("b", replace(this_process(other.pid), start="1"))):
            state.node(key).mkdir()
            (state.node(key) / "lease").write_text(json.dumps({"node": key, "child": child.to_dict()}))
        assert reconcile(state, "p") == [f"a: process {orphan.pid} of a dead run ended"]
        assert orphan.wait(5) == -9
        assert other.poll() is None
        assert reconcile(state, "p") == []
    finally:
        other.kill()
        other.wait()
