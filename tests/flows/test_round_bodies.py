"""Where a round starts, whether a later one runs, and how its gate sees champion, looks and an empty pool."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.context import NodeContext
from flows.work import judging, rounds
from specs.errors import StateError
from specs.gates import Evaluation
from specs.reward import Reward
from tests.flows.test_judging import fake_evaluation, gate_params, node

ASKED = {"round": 1, "start_from": "candidate_or_champion", "candidates": ["rl"], "sets": ["golden"], "promotes": True}


def record(folder: Path, answer: str, candidate: str = "rl", **more: Any) -> Path:
    folder.mkdir(parents=True)
    body = {"answer": answer, "candidate": candidate, "candidate_digest": "a" * 64, "look": 1, "looks": 3, **more}
    (folder / "gate.json").write_text(json.dumps(body))
    return folder


def policy(folder: Path, weights: str) -> Path:
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "weights").write_text(weights)
    return folder


def begin(tmp_path: Path, answer: str | None, *, champion: bool = False, **changes: Any) -> NodeContext:
    made = tmp_path / "made"
    inputs = {
        "policy.rl": policy(made / "rl", "rl"),
        "eval.rl.golden": fake_evaluation(made / "eval.rl", set(range(150)), "a", name="golden"),
    }
    (inputs["eval.rl.golden"] / "notes").mkdir()
    if answer is not None:
        inputs["gate"] = record(made / "gate", answer)
    if champion:
        inputs["policy.champion"] = policy(made / "champion", "champion")
        inputs["eval.champion.golden"] = fake_evaluation(made / "eval.champion", set(range(90)), "c", name="golden")
    context = node(tmp_path, {**ASKED, "champion": champion, **changes}, inputs, "round.start")
    rounds.start(context)
    return context


def told(context: NodeContext) -> dict[str, Any]:
    return json.loads((context.out / "start.json").read_text())


def weights(context: NodeContext) -> str:
    return (context.out / "policy" / "weights").read_text()


@pytest.mark.parametrize(
    ("answer", "champion", "changes", "starts", "baseline"),
    [
        ("pass", True, {}, "rl", "rl"),
        ("already_promoted", False, {}, "rl", "rl"),
        ("superseded", True, {}, "champion", "champion"),
        ("pass", True, {"promotes": False}, "rl", "champion"),
        ("inconclusive", True, {}, "rl", "champion"),
        ("inconclusive", False, {}, "rl", None),
        ("fail", True, {}, "champion", "champion"),
        ("fail", False, {}, "rl", None),
        ("fail", True, {"start_from": "candidate"}, "rl", "champion"),
        (None, False, {}, "rl", None),
    ],
)
def test_where_a_round_starts(
    tmp_path: Path, answer: str | None, *, champion: bool, changes: dict[str, Any], starts: str, baseline: str | None
) -> None:
    context = begin(tmp_path, answer, champion=champion, **changes)
    assert weights(context) == starts
    assert (told(context)["policy"], told(context)["baseline"]) == (starts, baseline)
    digest = {"rl": "a", "champion": "c"}
    found = json.loads((context.out / "evaluations" / "golden" / "metrics.json").read_text())
    assert found["policy_digest"] == digest[starts] * 64
    assert not list(context.out.rglob("notes")), "timings are no part of what a round depends on"
    if baseline is None:
        assert not (context.out / "baseline").exists()
    else:
        compared = json.loads((context.out / "baseline" / "golden" / "metrics.json").read_text())
        assert compared["policy_digest"] == digest[baseline] * 64


def test_a_later_round_goes_back_to_where_the_one_before_began_if_its_gate_failed(tmp_path: Path) -> None:
    first = begin(tmp_path, "pass", champion=True)
    made = tmp_path / "second"
    inputs = {
        "before": first.out,
        "policy.mend@1": policy(made / "mend", "mend@1"),
        "eval.mend@1.golden": fake_evaluation(made / "eval", set(range(20)), "e", name="golden"),
        "gate": record(made / "gate", "fail", "mend@1"),
    }
    params = {**ASKED, "round": 2, "candidates": ["mend@1"], "champion": False}
    failed = node(tmp_path, params, inputs, "round.start")
    rounds.start(failed)
    assert weights(failed) == "rl"
    assert (told(failed)["policy"], told(failed)["baseline"]) == ("rl", "rl")
    shutil.rmtree(made / "gate")
    record(made / "gate", "inconclusive", "mend@1")
    kept = node(tmp_path, params, inputs, "round.start")
    rounds.start(kept)
    assert weights(kept) == "mend@1"
    assert told(kept)["baseline"] == "rl", "an undecided candidate is not the champion"
    (made / "gate" / "gate.json").write_text("{")
    with pytest.raises(StateError, match=r"gate\.json: cannot be read"):
        rounds.start(node(tmp_path, params, inputs, "round.start"))


def choose(tmp_path: Path, after: list[int], *, no_gain_rounds: int = 1, answer: str = "pass") -> tuple[bool, str]:
    """Decide about round n + 1 after rounds that solved so many more problems than they began with."""
    inputs: dict[str, Path] = {}
    window = range(max(1, len(after) + 1 - no_gain_rounds), len(after) + 1)
    for k in window:
        before, gain = 100, after[k - 1]
        start = tmp_path / f"start{k}-{len(list(tmp_path.iterdir()))}"
        fake_evaluation(start / "evaluations" / "golden", set(range(before)), "a", name="golden")
        inputs[f"start.{k}"] = start
        inputs[f"eval.{k}.mend@{k}"] = fake_evaluation(start / "after", set(range(before + gain)), "b", name="golden")
        inputs[f"gate.{k}"] = record(start / "gate", answer, f"mend@{k}")
    params = {
        "round": len(after) + 1, "gain_on": "golden", "no_gain_rounds": no_gain_rounds,
        "candidates": {str(k): [f"mend@{k}"] for k in window},
    }  # fmt: skip
    context = node(tmp_path, params, inputs, "round.choose")
    notes = rounds.choose(context).notes
    decision = json.loads((context.out / "decision.json").read_text())
    assert notes == [decision["reason"]]
    return decision["go"], decision["reason"]


def test_a_round_runs_while_the_ones_before_it_gain(tmp_path: Path) -> None:
    assert choose(tmp_path, [10]) == (True, "round 1: success on golden went from 0.500 to 0.550, a gain")
    go, reason = choose(tmp_path, [0])
    assert (go, reason) == (
        False, "round 1: success on golden went from 0.500 to 0.500, no gain: round 2 is left out",
    )  # fmt: skip
    assert choose(tmp_path, [-5])[0] is False
    assert choose(tmp_path, [0], no_gain_rounds=2)[0] is True, "one round without a gain is not two"
    assert choose(tmp_path, [0, 0], no_gain_rounds=2)[0] is False
    assert choose(tmp_path, [0, 4], no_gain_rounds=2)[0] is True


def test_a_round_whose_gate_failed_gained_nothing(tmp_path: Path) -> None:
    go, reason = choose(tmp_path, [10], answer="fail")
    assert not go
    assert "and its gate failed" in reason


def test_success_that_was_not_measured_is_no_gain(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    params = {"round": 2, "gain_on": "golden", "no_gain_rounds": 1, "candidates": {"1": ["mend@1"]}}
    context = node(tmp_path, params, {"start.1": start}, "round.choose")
    rounds.choose(context)
    decision = json.loads((context.out / "decision.json").read_text())
    assert decision["go"] is False
    assert "was not measured, which is no gain" in decision["reason"]


# --- the gate of a round

NO_WORSE = {"metric": "success", "set": "golden", "no_worse_by": 0.1}
HIGH = {"metric": "success", "set": "golden", "at_least": 0.5}


def gate(tmp_path: Path, start: Path, *require: dict[str, Any], digest: str = "e", **inputs: Path) -> dict[str, Any]:
    new = fake_evaluation(
        tmp_path / f"new{digest}{len(list(tmp_path.iterdir()))}", set(range(160)), digest, name="golden"
    )
    params = gate_params(*require, candidates=["mend@1"], name="ship@1", gate={"looks": 5})
    given = {"candidate.mend@1.golden": new, "start": start, **{k.replace("_", ".", 1): v for k, v in inputs.items()}}
    context = node(tmp_path, params, given)
    judging.gate(context)
    return json.loads((context.out / "gate.json").read_text())


def test_a_rounds_gate_compares_with_the_champion_as_the_round_began(tmp_path: Path) -> None:
    found = gate(tmp_path, begin(tmp_path / "a", "pass").out, NO_WORSE, HIGH)
    assert (found["answer"], found["baseline"], found["baseline_digest"]) == ("pass", "rl", "a" * 64)
    none = gate(tmp_path, begin(tmp_path / "b", "inconclusive").out, NO_WORSE, HIGH)
    assert none["baseline"] is None
    assert [r["answer"] for r in none["rows"]] == ["not_applicable", "pass"]


def test_a_round_that_changed_nothing_finds_its_candidate_promoted_already(tmp_path: Path) -> None:
    found = gate(tmp_path, begin(tmp_path / "a", "pass").out, HIGH, digest="a")
    assert found["answer"] == "already_promoted"


def test_earlier_gates_of_the_run_are_looks(tmp_path: Path) -> None:
    start = begin(tmp_path / "a", "inconclusive").out
    main = record(tmp_path / "main", "pass", candidate_digest="f" * 64)
    assert gate(tmp_path, start, HIGH, earlier_ship=main)["look"] == 2
    same = record(tmp_path / "same", "pass", candidate_digest="e" * 64)
    assert gate(tmp_path, start, HIGH, earlier_ship=same)["look"] == 1, "the same policy is the same look"
    spent = record(tmp_path / "spent", "already_promoted", candidate_digest="f" * 64)
    assert gate(tmp_path, start, HIGH, earlier_ship=spent)["look"] == 1


# --- an empty regression pool


def test_an_empty_pool_is_not_applicable_and_asks_nobody(tmp_path: Path) -> None:
    at = tmp_path / "data"
    at.mkdir()
    (at / "records.jsonl").write_text("")
    params = {
        "evaluation": Evaluation().model_dump(mode="json"), "reward": Reward().model_dump(mode="json"),
        "environments": {"desk": {"kind": "order_desk"}}, "set": "regress", "role": "regression",
        "agent": {},
    }  # fmt: skip
    asked = node(tmp_path, params, {"problems": at, "policy": policy(tmp_path / "p", "p")}, "evaluate")
    outcome = judging.evaluate(asked)
    assert outcome.notes == ["the pool holds no case yet, so nothing was asked"]
    assert outcome.cost == {}
    count = {"metric": "regressed_cases", "set": "regress", "at_most": 0}
    new = fake_evaluation(tmp_path / "new", set(range(160)), "e", name="golden")
    inputs = {"candidate.rl.regress": asked.out, "candidate.rl.golden": new}
    decided = node(tmp_path, gate_params(count), {"candidate.rl.regress": asked.out})
    judging.gate(decided)
    found = json.loads((decided.out / "gate.json").read_text())
    assert found["rows"][0]["answer"] == "not_applicable"
    assert found["answer"] == "inconclusive", "a gate that asked nothing passes nobody"
    both = node(tmp_path, gate_params(count, HIGH), inputs)
    judging.gate(both)
    rows = json.loads((both.out / "gate.json").read_text())["rows"]
    assert [r["answer"] for r in rows] == ["not_applicable", "pass"]
