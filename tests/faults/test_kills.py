"""Kills at every durable step and at random moments: the next run ends with the same receipts and outputs."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.running import finish, live_children, paid, run, run_with_fault, snapshot, start, wait_until

ROLLOUTS = 30


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("reference") / "home"
    code, out, err = run(home)
    assert code == 0, out + err
    assert paid(home) == ROLLOUTS
    return snapshot(home)


def _settle(home: Path, ref: dict[str, Any], kills: int) -> None:
    code, out, err = run(home)
    assert code == 0, out + err
    assert snapshot(home) == ref
    assert paid(home) <= ROLLOUTS + kills  # at most what was in flight is done twice


def test_a_run_killed_at_ever_later_durable_steps_ends_as_if_it_had_not_been(tmp_path: Path, ref: dict[str, Any]):
    home, kills, at = tmp_path / "home", 0, 1
    while True:
        code, out, err = run_with_fault(home, f"any:{at}:kill_run")
        if code == 0:
            break
        assert code == -signal.SIGKILL, out + err
        kills, at = kills + 1, at + 7 + kills * 3
    assert kills >= 6
    _settle(home, ref, kills)


def test_a_run_killed_around_the_acts_that_count_ends_the_same(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    faults = [
        "sealed:1",
        "body_done:2",
        "checkpoint:1",
        "mid_append:9",
        "after_rename:5",
        "after_commit:8",
        "sealed:2",
        "body_done:1",
    ]
    killed = [run_with_fault(home, f"{fault}:kill_run")[0] for fault in faults]
    assert killed.count(-signal.SIGKILL) >= len(faults) - 2  # a late one may find nothing left to do
    _settle(home, ref, len(faults))


def test_a_run_killed_at_random_moments_ends_the_same(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    seed = int(os.environ.get("FAULT_SEED") or time.time_ns() % 10**6)
    print(f"FAULT_SEED={seed}")
    draw = random.Random(seed)
    for _ in range(6):
        process = start(home, FAULT_PAUSE="0.02")
        time.sleep(draw.uniform(0.15, 1.1))
        process.kill()
        finish(process)
        wait_until(lambda: not live_children(home), 2.0)  # a child never outlives its driver for long
    _settle(home, ref, 6)


def test_a_killed_child_is_a_failed_node_and_nothing_else_is_lost(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    code, out, err = run_with_fault(home, "checkpoint:2:kill")
    assert code == 5
    assert "teach failed" in out
    assert "SIGKILL" in out
    assert "report blocked needs teach, which failed" in out
    assert "Traceback" not in out + err
    _settle(home, ref, 1)


def _until_teaching(home: Path) -> None:
    wait_until(lambda: list(home.glob("nodes/*/ckpt/step-*")))


def test_sigterm_saves_stops_in_time_and_repeats_nothing(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    process = start(home, FAULT_PAUSE="0.05")
    _until_teaching(home)
    asked = time.monotonic()
    process.terminate()
    code, out, err = finish(process)
    assert code == 4, out + err
    assert time.monotonic() - asked < 10
    assert "teach interrupted" in out
    assert not live_children(home)
    _settle(home, ref, 0)


def test_a_second_signal_ends_at_once_and_says_how_to_go_on(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    process = start(home, FAULT_PAUSE="0.3")
    _until_teaching(home)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    code, _, err = finish(process)
    assert code == 4
    assert time.monotonic() - asked < 1.5
    assert "tutelage resume" in err
    _settle(home, ref, 1)


def test_the_wall_budget_stops_cleanly(tmp_path: Path, ref: dict[str, Any]):
    home = tmp_path / "home"
    code, out, _ = run(home, FAULT_PAUSE="0.2", options={"budget": {"wall_hours": 1.5 / 3600}})
    assert code == 8
    assert "the wall budget is used up" in out
    _settle(home, ref, 0)
