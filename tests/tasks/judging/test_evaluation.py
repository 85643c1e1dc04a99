import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from specs.errors import DataError
from specs.records import Observation, Trajectory
from specs.reward import Reward
from tasks.judging.evaluation import loops, problem_results, reward_range, summarise
from tasks.judging.results import Unusable, read_evaluation, try_evaluation, write_evaluation
from tasks.statistics.intervals import wilson
from tests.tasks.judging.builders import call, problem, trajectory

OK, BAD = Observation({"ok": True}), Observation({"error": "no such order"}, is_error=True)
FAULT = Observation({"error": "unavailable"}, is_error=True, injected=True)


def summary(
    sampled: list[Trajectory], greedy: list[Trajectory] | None = None, number: int = 4, **changes: Any
) -> dict[str, Any]:
    problems = [problem(i, "move" if i % 2 else "find", ["adversarial"] if i == 0 else []) for i in range(number)]
    return summarise(problems, sampled, greedy or [], **changes)[1]


def test_success_has_wilsons_interval_and_slices():
    found = summary([trajectory(i, success=i > 0) for i in range(4)])
    expected = wilson(3, 4)
    success = found["metrics"]["success"]
    assert (success["value"], success["low"], success["high"]) == pytest.approx((0.75, expected.low, expected.high))
    assert found["types"]["move"]["success"]["value"] == 1.0
    assert found["types"]["find"]["success"]["value"] == 0.5
    assert found["tags"]["adversarial"]["success"] == {
        **found["tags"]["adversarial"]["success"],
        "value": 0.0,
        "problems": 1,
    }
    assert found["counts"]["invalid_share"] == 0.0
    assert found["metrics"]["success_greedy"]["value"] is None


def test_what_has_no_verdict_lowers_n_and_is_no_failure():
    sampled = [
        trajectory(0),
        trajectory(1, success=None, status="infrastructure", error="sandbox died"),
        trajectory(2, success=None),
    ]
    found = summary(sampled)
    assert found["metrics"]["success"]["value"] == 1.0
    assert found["metrics"]["success"]["problems"] == 1
    assert (found["counts"]["asked"], found["counts"]["valid"]) == (4, 1)
    assert found["counts"]["invalid_share"] == 0.75
    assert found["counts"]["status"] == {"finished": 2, "infrastructure": 1}


def test_nothing_measured_is_none_and_never_zero():
    found = summary([trajectory(0, success=None, status="infrastructure")], number=1)
    assert all(m["value"] is None for m in found["metrics"].values())
    assert found["pass_at_k"]["1"] == {"value": None, "problems": 0, "left_out": 1}
    assert found["positive_problem_rate"] is None


def test_calls_errors_and_injected_faults():
    calls = [
        (call("get"), OK),
        (call("get", error="malformed_json"), BAD),
        (call("cancel", order=1), BAD),
        (call("ship", order=1), FAULT),
    ]
    found = summary([trajectory(0, calls=calls)], number=1)["metrics"]
    assert found["tool_success"]["value"] == pytest.approx(1 / 3)
    assert found["invalid_call_rate"]["value"] == pytest.approx(1 / 3)
    assert found["recovery_rate"]["value"] == 1.0


def test_truncation_and_greedy_and_tokens():
    found = summary(
        [trajectory(0, success=False, status="truncated"), trajectory(1)], [trajectory(0), trajectory(1)], 2
    )
    assert found["metrics"]["truncated_rate"]["value"] == 0.5
    assert found["metrics"]["success_greedy"]["value"] == 1.0
    assert found["counts"]["policy_tokens_mean"] == 2.0
    assert found["counts"]["tokens_per_success"] == 4.0


def test_several_samples_have_pass_metrics():
    sampled = [trajectory(0, success=s, sample=i) for i, s in enumerate([True, False, True, False])]
    found = summary(sampled, number=1, samples=4)
    assert found["pass_at_k"]["2"]["value"] == pytest.approx(5 / 6)
    assert found["pass_hat_k"]["2"]["value"] == pytest.approx(1 / 6)
    assert set(found["pass_at_k"]) == {"1", "2", "4"}


def test_loops():
    same, other = (call("get", order=1), OK), (call("get", order=2), OK)
    changed = (call("get", order=1), Observation({"ok": False}))
    assert loops(trajectory(0, calls=[same] * 3))
    assert loops(trajectory(0, calls=[same, other, same, other, same]))
    assert not loops(trajectory(0, calls=[same, other, same]))
    assert not loops(trajectory(0, calls=[same, other, changed, other]))
    assert not loops(trajectory(0, calls=[]))
    assert not loops(trajectory(0, calls=[(None, None)] * 3))


def test_reward_and_its_range():
    reward = Reward(floor=-1.0, outcome={"state": 1.0}, soft={"tools": 0.1}, process_cap=0.2, per_extra_call=-0.2)
    assert reward_range(reward, 8) == pytest.approx((-1.6, 1.3))
    assert reward_range(reward, 1, [5.0]) == pytest.approx((-1.0, 5.0))
    found = summary([trajectory(i, success=i > 0) for i in range(4)], scale=(-1.0, 1.0))["metrics"]["reward"]
    assert found["value"] == pytest.approx(0.75)
    assert -1.0 <= found["low"] < 0.75 < found["high"] <= 1.0


def test_a_trajectory_of_another_problem_is_refused():
    with pytest.raises(ValueError, match="not asked"):
        problem_results([problem(0)], [trajectory(7)], [], 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    problems = [problem(i) for i in range(3)]
    results, found = summarise(problems, [trajectory(i) for i in range(3)])
    shards = tmp_path / "trajectories"
    shards.mkdir()
    (shards / "part-00000.parquet").write_bytes(b"parquet")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "timing.json").write_text("{}", encoding="utf-8")
    head = {
        "policy_digest": "d" * 64, "set": "hidden", "role": "hidden", "samples": 1, "temperature": 1.0, "greedy": False,
        "reward_range": [-1.0, 1.0],
    }  # fmt: skip
    write_evaluation(tmp_path, results, {**found, **head})
    return tmp_path


def test_an_evaluation_reads_back(folder: Path):
    found = read_evaluation(folder)
    assert list(found.problems) == ["p0", "p1", "p2"]
    assert found.metrics["metrics"]["success"]["value"] == 1.0
    assert set(found.metrics["files"]) == {"problems.jsonl", "trajectories/part-00000.parquet"}


@pytest.mark.parametrize("name", ["metrics.json", "problems.jsonl", "trajectories/part-00000.parquet"])
@pytest.mark.parametrize("how", ["gone", "cut", "edited", "empty"])
def test_missing_or_damaged_evidence_is_refused_by_name(folder: Path, name: str, how: str):
    path = folder / name
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-5], "edited": b"x" + data[1:], "empty": b""}[how])
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read_evaluation(folder)
    found = try_evaluation(folder)
    assert isinstance(found, Unusable)
    assert name in found.reason


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"problems_asked": 4}, "3 of 4"), ({"format": 9}, "format"), ({"samples": "1"}, "samples"),
        ({"files": {}}, "names no"), ({"policy_digest": None}, "policy_digest"),
    ],
)  # fmt: skip
def test_a_summary_that_does_not_fit_is_refused(folder: Path, change: dict[str, Any], found: str):
    path = folder / "metrics.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}), encoding="utf-8")
    with pytest.raises(DataError, match=found):
        read_evaluation(folder)


def test_no_folder_is_missing_evidence():
    assert isinstance(try_evaluation(None), Unusable)


def test_counts_that_do_not_add_up_are_refused(folder: Path):
    lines = (folder / "problems.jsonl").read_text().splitlines()
    row = {**json.loads(lines[0]), "successes": 2}
    results = [json.loads(line) for line in lines[1:]]
    (folder / "problems.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [row, *results]), encoding="utf-8")
    whole = json.loads((folder / "metrics.json").read_text())
    whole["files"]["problems.jsonl"] = hashlib.sha256((folder / "problems.jsonl").read_bytes()).hexdigest()
    (folder / "metrics.json").write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(DataError, match="does not add up"):
        read_evaluation(folder)
