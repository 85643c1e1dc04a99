"""The quickstart itself, made small, through the real command line: whenever it is killed, it ends as if it had not been.

Each test ends with the receipts, the weights and the champion of a run that nobody disturbed, in a home of its own.
The moments are drawn with a seed that is printed; TUTELAGE_KILL_SEED repeats them.
"""

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.commands import Ended, end, receipts, start, tutelage, wait_for_no_process, weights

pytestmark = pytest.mark.slow

SETTINGS = {
    "run.checkpoint_seconds": 0.2,
    "environments.desk.types": "[stock]",
    "verifiers.order_state.answer": "false",
    "policy.init.hidden_size": 48,
    "policy.init.layers": 2,
    "policy.init.intermediate_size": 64,
    "policy.init.max_length": 128,
    "policy.init.tokenizer.vocab_size": 420,
    "data.demos.size": 1000,
    "data.demos.spoil.share": 0,
    "data.demos.spoil.no_recovery": "[]",
    "data.train.size": 60,
    "data.golden.size": 20,
    "data.hidden.size": 20,
    "stages.teach.algorithm.epochs": 6,
    "stages.harvest.algorithm.problems": 24,
    "stages.rl.algorithm.steps": 5,
    "stages.rl.algorithm.problems_per_step": 6,
    "stages.rl.algorithm.group_size": 4,
    "stages.rl.preflight.problems": 12,
    "stages.rl.needs.positive_problem_rate": 0.05,
    "flywheel.mine.problems": 80,
    "flywheel.pools": "{successes: 60, anchor: 60}",
    "flywheel.round.stages.harden.algorithm.steps": 3,
    "flywheel.round.stages.harden.algorithm.problems_per_step": 8,
    "gates.ship.require": "[{metric: success, set: hidden, at_least: 0.02}]",
}
QUICKSTART = ["run", "specs/programs/quickstart.yaml"]
QUICKSTART += [text for key, value in SETTINGS.items() for text in ("--set", f"{key}={value}")]
KILLS = 10


@dataclass(frozen=True)
class Undisturbed:
    """What a run that nobody disturbed left."""

    receipts: dict[str, dict[str, Any]]
    weights: dict[str, bytes]
    registry: dict[str, Any]
    steps: dict[str, list[int]]
    seconds: float


def _registry(home: Path) -> dict[str, Any]:
    data = json.loads((home / "registry" / "quickstart.json").read_text())
    for entry in (*data["versions"], *data["promotions"]):
        entry.pop("time", None)
        entry.pop("created", None)
        entry.pop("execution", None)
    return data


def _steps(home: Path) -> dict[str, list[int]]:
    """Return the steps of each node's curve; a step that was trained twice must be told once."""
    found: dict[str, list[int]] = {}
    for path in home.glob("nodes/*/metrics.jsonl"):
        node = json.loads((path.parent / "receipt.json").read_text())["node"]
        found[node] = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    return found


def _left(home: Path, seconds: float) -> Undisturbed:
    return Undisturbed(receipts(home), weights(home), _registry(home), _steps(home), seconds)


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    home = tmp_path_factory.mktemp("undisturbed") / "home"
    began = time.monotonic()
    ended = tutelage(*QUICKSTART, "--no-services", home=home, timeout=400).must(0, "gate ship: pass", "champion")
    assert "rl" in receipts(home), ended.said
    return _left(home, time.monotonic() - began)


def _settle(home: Path, ref: Undisturbed, *more: str) -> Ended:
    """Run once more, to the end, and compare everything that lasts."""
    ended = tutelage(*QUICKSTART, *more, home=home, timeout=400).must(0, "champion: version 2")
    left = _left(home, 0.0)
    assert set(left.receipts) == set(ref.receipts)
    for node, receipt in ref.receipts.items():
        assert left.receipts[node] == receipt, node
    assert set(left.weights) == set(ref.weights)
    assert [n for n in ref.weights if left.weights[n] != ref.weights[n]] == []
    assert left.registry == ref.registry
    assert left.steps == ref.steps
    assert not [p for pattern in ("*.tmp", "damaged-*") for p in (home / "nodes").rglob(pattern)]
    wait_for_no_process(home, 10.0 if "--no-services" in more else 100.0)
    return ended


def _resumed(home: Path) -> list[str]:
    """Return what nodes' logs say about going on from a checkpoint."""
    return [line for p in home.glob("nodes/*/log") for line in p.read_text().splitlines() if "went on from" in line]


def test_killed_at_ten_random_moments(tmp_path: Path, ref: Undisturbed) -> None:
    home = tmp_path / "home"
    seed = int(os.environ.get("TUTELAGE_KILL_SEED") or time.time_ns() % 10**6)
    print(f"TUTELAGE_KILL_SEED={seed}")
    draw = random.Random(seed)
    kills = 0
    while kills < KILLS:
        process = start(*QUICKSTART, "--no-services", home=home)
        time.sleep(draw.uniform(0.5, max(6.0, ref.seconds / 6)))
        if process.poll() is not None:
            end(process).must(0)
            break
        process.kill()
        assert end(process).code == -signal.SIGKILL
        wait_for_no_process(home)  # children end by themselves
        kills += 1
    print(f"{kills} kills; {_resumed(home)}")
    assert kills >= KILLS // 2
    _settle(home, ref, "--no-services")


def _wait_for_more(process: Any, home: Path, seen: int) -> None:
    while process.poll() is None and len(list(home.glob("nodes/*/receipt.json"))) <= seen:
        time.sleep(0.003)


def test_killed_as_each_receipt_appears(tmp_path: Path, ref: Undisturbed) -> None:
    home, kills = tmp_path / "home", 0
    while True:
        seen = len(list(home.glob("nodes/*/receipt.json")))
        process = start(*QUICKSTART, "--no-services", home=home)
        _wait_for_more(process, home, seen)
        process.kill()
        if end(process).code == 0:
            break
        wait_for_no_process(home)
        kills += 1
    print(f"{kills} kills for {len(ref.receipts)} nodes")
    assert kills >= len(ref.receipts) // 2  # two nodes that end together are one boundary
    _settle(home, ref, "--no-services")


def _checkpoints(home: Path) -> set[Path]:
    return {p for p in home.glob("nodes/*/ckpt/*/step-*") if p.is_dir()}


def test_killed_in_the_middle_of_stages(tmp_path: Path, ref: Undisturbed) -> None:
    home, kills, seen = tmp_path / "home", 0, set[Path]()
    while kills < 6:
        process = start(*QUICKSTART, "--no-services", home=home)
        while process.poll() is None and _checkpoints(home) <= seen:
            time.sleep(0.003)
        seen |= _checkpoints(home)
        process.kill()
        if end(process).code == 0:
            break
        wait_for_no_process(home)
        kills += 1
    _settle(home, ref, "--no-services")
    print(f"{kills} kills; {_resumed(home)}")
    assert kills >= 2
    assert _resumed(home)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, ref: Undisturbed) -> None:
    home = tmp_path / "home"
    process = start(*QUICKSTART, "--no-services", home=home)
    while process.poll() is None and len(_checkpoints(home)) < 2:
        time.sleep(0.003)
    process.kill()
    end(process)
    newest = max(_checkpoints(home), key=lambda p: p.name)
    tensors = newest / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    tutelage(*QUICKSTART, "--no-services", home=home, timeout=400).must(
        0, f"checkpoint {newest.name} is damaged", "set aside"
    )
    assert weights(home) == ref.weights  # what it cost is the steps since the checkpoint before, and nothing else


@pytest.mark.services
def test_killed_with_prefect_and_mlflow_beside_it(tmp_path: Path, ref: Undisturbed) -> None:
    home = tmp_path / "home"
    for receipts_there in (6, 12):
        process = start(*QUICKSTART, home=home)
        while process.poll() is None and len(list(home.glob("nodes/*/receipt.json"))) < receipts_there:
            time.sleep(0.01)
        process.kill()
        assert end(process).code == -signal.SIGKILL
        wait_for_no_process(home, 100.0)  # servers at once, the recorder when all is sent or after a minute
    ended = _settle(home, ref)
    assert "going on without" not in ended.said
    assert "goes on without" not in ended.said
