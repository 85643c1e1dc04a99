"""Two at once (FM-32, FM-33): one driver at a time; the other refuses, names the owner and changes nothing."""

import os
import re
import time
from pathlib import Path

import pytest

from flows.leases import driver_lease
from tests.faults.commands import tutelage
from tests.faults.running import finish, paid, run, start, wait_until


def _everything(home: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(home.rglob("*")) if p.is_file()}


def test_fm_32_a_second_driver_refuses_names_the_owner_and_changes_no_file(tmp_path: Path):
    home = tmp_path / "home"
    assert run(home, options={"request": {"until": "data.apart"}})[0] == 0
    with driver_lease(home / "programs" / "reference" / "lease", "reference"):
        before = _everything(home)
        began = time.monotonic()
        code, _, err = run(home)
        assert code == 9
        assert time.monotonic() - began < 2.5
        assert _everything(home) == before
    assert f"process {os.getpid()} on " in err
    assert "since 20" in err
    assert "--wait" in err


def _two_at_once(home: Path, apart: float) -> None:
    first = start(home, FAULT_PAUSE="0.03")
    time.sleep(apart)
    second = start(home, FAULT_PAUSE="0.03")
    ended = [finish(first), finish(second)]
    assert sorted(code for code, _, _ in ended) == [0, 9], ended
    refused = next(err for code, _, err in ended if code == 9)
    assert re.search(r"process \d+ on \S+, since 20", refused), refused
    assert paid(home) == 30


def test_fm_32_of_two_that_start_at_once_exactly_one_works(tmp_path: Path):
    _two_at_once(tmp_path / "home", 0.0)


@pytest.mark.slow
def test_fm_32_twenty_times_within_fifty_milliseconds(tmp_path: Path):
    for i in range(20):
        _two_at_once(tmp_path / f"home{i}", 0.05 * i / 19)


def test_fm_33_nothing_of_a_living_run_is_resumed_or_cleared(tmp_path: Path):
    home = tmp_path / "home"
    process = start(home, FAULT_PAUSE="0.5")
    wait_until(lambda: list(home.glob("nodes/*/ckpt/rollouts.jsonl")))
    code, _, err = run(home)
    assert code == 9, err
    mine = home / "nodes" / f".mine.{process.pid}.1.tmp"  # of a writer that lives
    mine.write_text("")
    held = [p for p in home.glob("*/*/lease") if p.stat().st_size]
    tutelage("doctor", "--fix", home=home)
    assert mine.exists()
    assert {p: p.stat().st_size > 0 for p in held} == dict.fromkeys(held, True)
    mine.unlink()
    process.terminate()
    assert finish(process)[0] == 4
    assert run(home)[0] == 0
    assert paid(home) == 30
