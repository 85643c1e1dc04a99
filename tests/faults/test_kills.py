"""Kills (FM-01 to FM-07): whenever a run is ended, the next one ends with the same receipts, weights and champion.

What is short runs with every change; what is marked slow takes the same program with a real model, and every point.
"""

import itertools
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from flows.registry import gate_digest, load
from tests.faults.running import (
    CHAIN,
    EVERY,
    MODEL,
    calls,
    finish,
    live_children,
    redone,
    resumes,
    run,
    run_with_fault,
    scan,
    snapshot,
    start,
    tracer,
    wait_until,
)

IN_FLIGHT = 4
POINTS = (
    ("data.train", "body_done.data.train"), ("data.train", "sealed.data.train"),
    *(("replies", p) for p in 3 * ("before_reply", "after_reply")),
    *(("rollouts", p) for p in 3 * ("before_rollout", "after_rollout")),
    ("verdicts", "body_done.verdicts"), ("verdicts", "sealed.verdicts"),
    *(("learn", p) for p in 2 * ("before_checkpoint", "after_checkpoint")),
    ("learn", "body_done.learn"), ("learn", "sealed.learn"),
    ("eval.learn.golden", "body_done.eval.learn.golden"), ("eval.learn.golden", "sealed.eval.learn.golden"),
    ("gate.ship", "body_done.gate.ship"), ("gate.ship", "sealed.gate.ship"),
    ("promote.ship", "before_switch"), ("promote.ship", "after_switch"),
    ("promote.ship", "body_done.promote.ship"), ("promote.ship", "sealed.promote.ship"),
)  # fmt: skip
"""Before and after every durable step, in the order in which a run meets them, each with the node where it lies."""
SHORT = (
    ("data.train", "sealed.data.train"), ("replies", "before_reply"), ("rollouts", "after_rollout"),
    ("learn", "after_checkpoint"), ("promote.ship", "before_switch"),
)  # fmt: skip


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _undisturbed(tmp_path_factory.mktemp("chain") / "home", CHAIN)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _undisturbed(tmp_path_factory.mktemp("model") / "home", MODEL)


def _undisturbed(home: Path, program: dict[str, Any]) -> dict[str, Any]:
    code, out, err = run(home, **program)
    assert code == 0, out + err
    assert set(calls(home).values()) == {1}
    assert len(calls(home)) == 48
    return _left(home)


def _left(home: Path) -> dict[str, Any]:
    registry = load(home, "campaign")
    champion = registry.alias("champion")
    assert champion is not None
    assert [v.version for v in registry.versions] == [1]
    return {"nodes": snapshot(home), "champion": champion.digest, "gate": champion.gate}


def _settle(home: Path, ref: dict[str, Any], kills: int, program: dict[str, Any] = CHAIN) -> None:
    """Run once more, to the end, and compare everything that lasts."""
    code, out, err = run(home, **program)
    assert code == 0, out + err
    assert _left(home) == ref
    again = redone(home)
    assert again <= EVERY * kills, "at most one save interval a kill, and none where nothing was killed"
    paid = calls(home)
    assert len(paid) == 48
    assert paid.total() - 48 <= IN_FLIGHT * kills, paid
    assert not list(home.rglob("*.tmp"))
    assert not live_children(home)


def _kill_at(home: Path, points: tuple[tuple[str, str], ...], *, chain: bool) -> None:
    """Kill a run at each point in turn; each goes on from what the one before left."""
    for node, point in points:
        preload = ["torch", "numpy"] if node == "learn" and not chain else []
        options = {"campaign": {"chain": chain}, "preload": preload, "request": {"until": node}}
        code, out, err = run_with_fault(home, f"{point}:1:kill_run", options=options)
        assert code == -signal.SIGKILL, f"{point}: {out}{err}"
        wait_until(lambda: not live_children(home), 3.0)  # a child never outlives its driver for long
        scan(home)


def test_fm_01_killed_around_the_acts_that_count(tmp_path: Path, chain: dict[str, Any]):
    _kill_at(tmp_path / "home", SHORT, chain=True)
    _settle(tmp_path / "home", chain, len(SHORT))
    assert resumes(tmp_path / "home") == 1


@pytest.mark.slow
def test_fm_01_killed_before_and_after_every_durable_step(tmp_path: Path, model: dict[str, Any]):
    _kill_at(tmp_path / "home", POINTS, chain=False)
    _settle(tmp_path / "home", model, len(POINTS), MODEL)
    assert resumes(tmp_path / "home") >= 3


def _random_kills(home: Path, kills: int, longest: float, program: dict[str, Any]) -> int:
    seed = int(os.environ.get("FAULT_SEED") or time.time_ns() % 10**6)
    print(f"FAULT_SEED={seed}")
    draw = random.Random(seed)
    done = 0
    for _ in range(kills):
        process = start(home, FAULT_PAUSE="0.1", **program)
        if draw.random() < 0.8:  # else it may still be starting
            _until_it_works(home, process)
        time.sleep(draw.uniform(0.0, longest))
        process.kill()
        done += finish(process)[0] != 0
        wait_until(lambda: not live_children(home), 3.0)
        scan(home)
    print(f"{done} kills, {calls(home).total() - len(calls(home))} repeats")
    return done


def _until_it_works(home: Path, process: Any) -> None:
    """Wait until one more call or step was paid for, so that kills meet work and not only the start."""
    path = home.with_suffix(".paid")
    known = path.stat().st_size if path.exists() else 0
    while process.poll() is None and not (path.exists() and path.stat().st_size > known):
        time.sleep(0.01)


def test_fm_02_killed_at_random_moments(tmp_path: Path, chain: dict[str, Any]):
    kills = _random_kills(tmp_path / "home", 5, 0.4, CHAIN)
    _settle(tmp_path / "home", chain, kills)


@pytest.mark.slow
def test_fm_02_killed_at_twenty_random_moments(tmp_path: Path, model: dict[str, Any]):
    kills = _random_kills(tmp_path / "home", int(os.environ.get("FAULT_KILLS") or 20), 1.0, MODEL)
    _settle(tmp_path / "home", model, kills, MODEL)


def _killed_ever_later(home: Path, after: Any) -> int:
    kills, at = 0, 1
    while True:
        code, out, err = run_with_fault(home, f"any:{at}:kill_run", **CHAIN)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL, out + err
        scan(home)
        kills += 1
        at = after(at, kills)


def test_fm_03_killed_at_ever_later_durable_steps(tmp_path: Path, chain: dict[str, Any]):
    kills = _killed_ever_later(tmp_path / "home", lambda at, kills: at + 15 + kills * 20)
    assert kills >= 3
    _settle(tmp_path / "home", chain, kills)


@pytest.mark.slow
def test_fm_03_killed_at_the_first_second_third_durable_step_and_so_on(tmp_path: Path, chain: dict[str, Any]):
    kills = _killed_ever_later(tmp_path / "home", lambda at, kills: at + 1)
    print(f"{kills} kills")
    assert kills >= 12
    _settle(tmp_path / "home", chain, kills)


LEAST_KILLS = {"rename": 8, "fsync": 12, "renameat2": 2}
"""Kills that the witness must come to. A process makes up to 28 renames, fewer the more the killed ones before it left
behind; folders are exchanged when a checkpoint takes another's place."""


@pytest.mark.slow
@pytest.mark.parametrize("call", list(LEAST_KILLS))
def test_fm_03_killed_at_the_nth_system_call(call: str, tmp_path: Path, chain: dict[str, Any]):
    """The witness that asks nothing of our code: a tracer kills whichever process makes the call for the nth time."""
    strace = tracer()
    home, kills = tmp_path / "home", 0
    for number in itertools.count(1):
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        traced = (strace, "-f", "-qq", "-o", os.devnull, *inject)  # with --seccomp-bpf forks never get to the second
        code, out, err = finish(start(home, under=traced, **CHAIN))
        if code == 0:
            break
        assert code in (-signal.SIGKILL, 128 + signal.SIGKILL, 5), out + err
        assert code != 5 or "SIGKILL" in out + err, out + err  # a node fails for no other reason
        wait_until(lambda: not live_children(home), 3.0)
        scan(home)
        kills += 1
    assert kills >= LEAST_KILLS[call]
    _settle(home, chain, kills)


def _until(home: Path, pattern: str) -> None:
    wait_until(lambda: list(home.glob(f"nodes/*/{pattern}")))


@pytest.mark.parametrize(
    ("where", "number"), [("ckpt/calls.jsonl", signal.SIGTERM), ("ckpt/step-*", signal.SIGINT)], ids=["calls", "steps"]
)
def test_fm_04_a_signal_saves_stops_in_time_and_repeats_nothing(
    where: str, number: signal.Signals, tmp_path: Path, chain: dict[str, Any]
):
    home = tmp_path / "home"
    process = start(home, FAULT_PAUSE="0.05", **CHAIN)
    _until(home, where)
    asked = time.monotonic()
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == 4, out + err
    assert time.monotonic() - asked < 10
    assert "interrupted" in out
    assert not live_children(home)
    _settle(home, chain, 0)


def test_fm_05_a_second_signal_ends_at_once_and_says_how_to_go_on(tmp_path: Path, chain: dict[str, Any]):
    home = tmp_path / "home"
    process = start(home, FAULT_PAUSE="3", **CHAIN)
    wait_until(lambda: home.with_suffix(".paid").exists())
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    code, _, err = finish(process)
    assert code == 4
    assert time.monotonic() - asked < 1.5
    assert "tutelage resume" in err
    _settle(home, chain, 1)


def test_fm_06_a_killed_child_is_a_failed_node_and_nothing_else_is_lost(tmp_path: Path, chain: dict[str, Any]):
    home = tmp_path / "home"
    code, out, err = run_with_fault(home, "checkpoint:2:kill", **CHAIN)
    assert code == 5
    assert "learn failed" in out
    assert "SIGKILL" in out
    assert "eval.learn.golden blocked needs learn, which failed" in out
    assert "Traceback" not in out + err
    _settle(home, chain, 1)


def test_fm_06_the_process_that_starts_nodes_is_killed_alone(tmp_path: Path, chain: dict[str, Any]):
    """Its forks end with it: their nodes fail, what they kept is used, and the driver says so."""
    home = tmp_path / "home"
    process = start(home, FAULT_PAUSE="0.2", **CHAIN)
    _until(home, "ckpt/calls.jsonl")
    (nursery,) = _children_of(process.pid, "flows.nursery")
    os.kill(nursery, signal.SIGKILL)
    code, out, err = finish(process)
    assert code == 5, out + err
    assert "SIGKILL" in out
    assert "Traceback" not in out + err
    _settle(home, chain, 1)


def _children_of(pid: int, module: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid and module in (path.parent / "cmdline").read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_fm_07_killed_between_the_gates_record_and_the_switch(tmp_path: Path, chain: dict[str, Any]):
    home = tmp_path / "home"
    for fault in ("sealed.gate.ship:1", "before_switch:1", "after_switch:1"):
        assert run_with_fault(home, f"{fault}:kill_run", **CHAIN)[0] == -signal.SIGKILL
        registry = load(home, "campaign")
        gates = [gate_digest(p) for p in home.glob("nodes/*/out/gate.json")]
        assert all(v.gate in gates for v in registry.versions)  # never a version without its gate record
        assert len(registry.promotions) == (fault == "after_switch:1")
    _settle(home, chain, 3)
    assert len(load(home, "campaign").promotions) == 1


def test_the_wall_budget_stops_cleanly(tmp_path: Path):
    home = tmp_path / "home"
    code, out, _ = run(home, FAULT_PAUSE="0.2", options={"budget": {"wall_hours": 1.5 / 3600}})
    assert code == 8
    assert "the wall budget is used up" in out
    assert json.loads(next(home.glob("programs/reference/last.json")).read_text())["exit_code"] == 8
