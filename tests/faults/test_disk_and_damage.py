"""Full disks and damaged files: named, never loaded, done again."""

import resource
from pathlib import Path
from typing import Any

import pytest

from flows.state import State
from tests.faults.running import here, run, snapshot


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("reference") / "home"
    assert here(home).exit_code == 0
    return snapshot(home)


@pytest.mark.parametrize("fault", ["mid_append:21:enospc", "checkpoint:2:enospc", "after_write:7:enospc"])
def test_a_full_disk_is_named_and_nothing_is_lost(fault: str, tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    code, out, err = run(home, TUTELAGE_FAULT=fault)  # each process counts alone: the stage's is the first to get there
    assert code == 5, out + err
    assert "disk full" in out + err
    assert "Traceback" not in out + err
    assert run(home)[0] == 0
    assert snapshot(home) == ref


def test_a_file_size_limit_stops_the_stage_with_the_path_and_the_bytes_needed(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    limit = (6000, resource.RLIM_INFINITY)
    code, out, _ = run(home, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert code == 5
    line = next(x for x in out.splitlines() if x.startswith("teach failed"))
    assert "rollouts.jsonl" in line
    assert "bytes needed" in line
    assert run(home)[0] == 0
    assert snapshot(home) == ref


def _path(home: Path, node: str, name: str) -> Path:
    return next(
        p
        for p in home.glob(f"nodes/*/{name}")
        if f'"node": "{node}"' in (p.parents[name.count("/")] / "receipt.json").read_text()
    )


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["receipt", "flipped", "cut", "missing"])
def test_damage_is_named_set_aside_and_done_again(how: str, tmp_path: Path, ref: dict[str, Any]):
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
    assert snapshot(home) == ref


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
