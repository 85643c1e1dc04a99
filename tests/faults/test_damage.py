"""Damaged files (FM-13 to FM-16): never loaded, named, set aside or done again; nothing starts over in silence."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.state import State
from specs.errors import StateError
from tasks.files import Ledger, list_tree
from tasks.learning.checkpoints import Checkpointer
from tests.faults.learning import PARTS, learn
from tests.faults.running import CHAIN, calls, finish, here, run, snapshot, start, wait_until

SEED = 20240607


def _flip(path: Path, at: int, bit: int = 2) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def _saved(folder: Path) -> Checkpointer:
    checkpoints = Checkpointer(folder, "learn")
    for step in (5, 10):
        checkpoints.save(step, {"w": torch.full((40, 5), float(step))}, {"step": step, "seen": list(range(50))})
    return checkpoints


def _damage(path: Path, how: str, draw: random.Random) -> None:
    size = path.stat().st_size
    if how == "cut":
        path.write_bytes(path.read_bytes()[: draw.randrange(size)])
    elif how == "bit":
        _flip(path, draw.randrange(size), draw.randrange(8))
    else:
        path.write_bytes(path.read_bytes()[: size // 2] + bytes(size - size // 2))


@pytest.mark.parametrize(("how", "times"), [("cut", 60), ("bit", 60), ("zeros", 3)])
def test_fm_13_a_damaged_checkpoint_is_never_loaded_and_the_one_before_is(how: str, times: int, tmp_path: Path):
    draw = random.Random(SEED)
    for number in range(times):
        folder = tmp_path / str(number)
        checkpoints = _saved(folder)
        files = sorted(p for p in (folder / "step-000000010").iterdir())
        _damage(files[number % len(files)], how, draw)
        found = checkpoints.latest()
        assert found is not None
        assert found.step == 5
        assert torch.equal(found.tensors["w"], torch.full((40, 5), 5.0))
        assert any("step-000000010 is damaged" in text and "set aside" in text for text in checkpoints.damaged)
        assert (folder / "damaged-step-000000010").is_dir()


def test_fm_13_where_every_checkpoint_is_damaged_nothing_starts_over_in_silence(tmp_path: Path):
    checkpoints = _saved(tmp_path)
    for path in tmp_path.glob("step-*/tensors.safetensors"):
        _flip(path, 200)
    with pytest.raises(StateError, match="does not start over"):
        checkpoints.latest()
    with pytest.raises(StateError, match="every checkpoint is damaged"):  # asked again, the same answer
        Checkpointer(tmp_path, "learn").latest()


def _train(folder: Path, until: int = 30, leave_out: str = "") -> str:
    return learn(folder, 7, "rows", stop_after=until, leave_out=leave_out, step=lambda *_: False)[1]


def test_the_end_is_equal_bit_for_bit_and_only_with_every_part_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAULT_PAUSE", "0")
    whole = _train(tmp_path / "whole")
    _train(tmp_path / "parts", until=15)
    assert _train(tmp_path / "parts") == whole
    for part in PARTS:
        _train(tmp_path / part, until=15)
        assert _train(tmp_path / part, leave_out=part) != whole, f"a checkpoint without {part} went unnoticed"


def _killed_among_its_calls(home: Path) -> Path:
    """Return the ledger of paid calls of a run that was killed while it made them."""
    process = start(home, FAULT_PAUSE="0.3", **CHAIN)
    ledger = wait_until(lambda: list(home.glob("nodes/*/ckpt/calls.jsonl")))[0]
    wait_until(lambda: len(ledger.read_text().splitlines()) >= 4)
    process.kill()
    finish(process)
    return ledger


def test_fm_14_a_torn_last_line_is_counted_cut_and_its_item_done_again(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    ledger = _killed_among_its_calls(home)
    lines = ledger.read_bytes().splitlines(keepends=True)
    assert len(lines[-1]) > 300
    torn = json.loads(lines[-1])["key"]
    ledger.write_bytes(b"".join(lines[:-1]) + lines[-1][:54])
    log = ledger.parents[1] / "log"
    code, out, err = run(home, **CHAIN)
    assert code == 0, out + err
    assert "54 torn bytes and 0 repeated records" in log.read_text()
    assert snapshot(home) == ref
    assert calls(home)[f"replies {torn}"] == 2


def test_fm_15_the_same_record_twice_is_kept_once_and_two_that_differ_are_refused(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    ledger = _killed_among_its_calls(home)
    lines = [x for x in ledger.read_bytes().splitlines(keepends=True) if x.endswith(b"\n")]
    ledger.write_bytes(b"".join([*lines, lines[0]]))
    other = json.loads(lines[1])
    assert Ledger(ledger).keyed("key").keys() == {(json.loads(x)["key"],) for x in lines}
    good = ledger.read_bytes()
    ledger.write_bytes(good + json.dumps(other | {"text": "another"}).encode() + b"\n")
    code, out, err = run(home, **CHAIN)
    assert code == 5, out + err
    assert f"lines 2 and {len(lines) + 2} both hold ('{other['key']}',) and differ" in out
    ledger.write_bytes(good)
    assert run(home, **CHAIN)[0] == 0
    assert "0 torn bytes and 1 repeated records" in (ledger.parents[1] / "log").read_text()
    assert snapshot(home) == ref


@pytest.mark.slow
def test_fm_16_an_object_of_a_data_version_that_changed_or_is_gone(tmp_path: Path):
    from flows import datasets

    home, source = tmp_path / "home", tmp_path / "out"
    source.mkdir()
    (source / "records.jsonl").write_text('{"id": 1}\n')
    item = datasets.Item("p/train", source, list_tree(source), {"program": "p"})
    (version,) = datasets.publish(home, [item], "first", say=lambda _: None)
    (stored,) = [p for p in (home / "dvc" / "cache").rglob("*") if p.is_file() and p.read_bytes() == b'{"id": 1}\n']
    stored.chmod(0o644)
    stored.write_text('{"id": 2}\n')
    with pytest.raises(StateError, match="is damaged") as told:
        datasets.checkout(home, version, tmp_path / "a", say=print)
    assert stored.name in str(told.value) or stored.parent.name in str(told.value)
    stored.unlink()
    with pytest.raises(StateError, match=r"is missing, and no DVC remote"):
        datasets.checkout(home, version, tmp_path / "b", say=print)


def _path(home: Path, node: str, name: str) -> Path:
    return next(
        p
        for p in home.glob(f"nodes/*/{name}")
        if f'"node": "{node}"' in (p.parents[name.count("/")] / "receipt.json").read_text()
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("reference") / "home"
    assert here(home).exit_code == 0
    return snapshot(home)


@pytest.mark.parametrize("how", ["receipt", "flipped", "cut", "missing"])
def test_damage_of_a_result_is_named_set_aside_and_done_again(how: str, tmp_path: Path, small: dict[str, Any]):
    home = tmp_path / "home"
    assert here(home).exit_code == 0
    output = _path(home, "data.golden", "out/records.jsonl")
    match how:
        case "receipt":
            _flip(output.parents[1] / "receipt.json", 200)
        case "flipped":
            _flip(output, 100)
        case "cut":
            output.write_bytes(output.read_bytes()[:-1])
        case _:
            output.unlink()
    again = here(home)
    assert again.exit_code == 0
    assert again.ends["data.golden"].status == "completed"
    assert again.ends["teach"].status == "reused"  # the same digest came out: nothing after it runs
    assert any(str(output.parents[1]) in note and "damaged-1" in note for note in again.notes), again.notes
    assert snapshot(home) == small


def test_no_flipped_bit_of_a_receipt_is_accepted(tmp_path: Path):
    home = tmp_path / "home"
    assert here(home, until="data.apart").exit_code == 0
    path = next(home.glob("nodes/*/receipt.json"))
    good = path.read_bytes()
    state = State(home)
    for at in range(0, len(good), 5):
        _flip(path, at)
        found = state.receipt(path.parent.name)
        path.write_bytes(good)
        assert found is None, at
    assert state.receipt(path.parent.name) is not None
