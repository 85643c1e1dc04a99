"""Where a round starts, whether a later one runs, and how its gate sees champion, looks and an empty pool."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.context import NodeContext
from flows.durable import digest_tree
from flows.work import judging, rounds
from specs.errors import StateError
from specs.gates import Evaluation
from specs.reward import Reward
from tests.flows.test_judging import fake_evaluation, gate_params, node

ASKED = {"round": 1, "start_from": "candidate_or_champion", "candidates": ["rl"], "sets": ["golden"], "promotes": True}


def record(folder: Path, answer: str, candidate: str = "rl", **more: Any) -> Path:
    folder.mkdir(parents=True)
    result = "gate_failed" if answer == "fail" else "completed"
    body = {"answer": answer, "candidate": candidate, "candidate_digest": "a" * 64, "result": result, **more}
    (folder / "gate.json").write_text(json.dumps(body))
    return folder


def answered(folder: Path, answer: str, candidate: str = "rl") -> Path:
    """Write a gate's record; `undecided_fails`: inconclusive, where the gate declares that this fails."""
    if answer == "undecided_fails":
        return record(folder, "inconclusive", candidate, result="gate_failed")
    return record(folder, answer, candidate)


def policy(folder: Path, weights: str) -> Path:
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "weights").write_text(weights)
    return folder


@dataclass(frozen=True)
class Begun:
    start: NodeContext
    evidence: NodeContext

    @property
    def weights(self) -> str:
        return (self.start.out / "policy" / "weights").read_text()

    @property
    def told(self) -> dict[str, Any]:
        return json.loads((self.evidence.out / "start.json").read_text())


def begin(tmp_path: Path, answer: str | None, *, champion: bool = False, **changes: Any) -> Begun:
    """Begin a first round after a main part that offers `rl`."""
    made = tmp_path / "made"
    inputs = {
        "policy.rl": policy(made / "rl", "rl"),
        "eval.rl.golden": fake_evaluation(made / "eval.rl", set(range(150)), "a", name="golden"),
    }
    (inputs["eval.rl.golden"] / "notes").mkdir()
    if answer is not None:
        inputs["gate"] = answered(made / "gate", answer)
    if champion:
        inputs["policy.champion"] = policy(made / "champion", "champion")
        inputs["eval.champion.golden"] = fake_evaluation(made / "eval.champion", set(range(90)), "c", name="golden")
    return begun(tmp_path, {**ASKED, "champion": champion, **changes}, inputs)


def begun(tmp_path: Path, params: dict[str, Any], inputs: dict[str, Path]) -> Begun:
    made = Begun(node(tmp_path, params, inputs, "round.start"), node(tmp_path, params, inputs, "round.evidence"))
    rounds.start(made.start)
    rounds.evidence(made.evidence)
    return made


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
        ("undecided_fails", True, {}, "champion", "champion"),
        ("undecided_fails", True, {"start_from": "candidate"}, "rl", "champion"),
        (None, False, {}, "rl", None),
    ],
)
def test_where_a_round_starts(
    tmp_path: Path, answer: str | None, *, champion: bool, changes: dict[str, Any], starts: str, baseline: str | None
) -> None:
    first = begin(tmp_path, answer, champion=champion, **changes)
    context = first.evidence
    assert first.weights == starts
    assert (first.told["policy"], first.told["baseline"]) == (starts, baseline)
    assert [p.name for p in first.start.out.iterdir()] == ["policy"]
    digest = {"rl": "a", "champion": "c"}
    found = json.loads((context.out / "evaluations" / "golden" / "metrics.json").read_text())
    assert found["policy_digest"] == digest[starts] * 64
    assert not list(context.out.rglob("notes")), "timings are no part of what a round depends on"
    if baseline is None:
        assert not (context.out / "baseline").exists()
        assert not (context.out / "champion").exists()
    else:
        assert (context.out / "champion" / "weights").read_text() == baseline
        compared = json.loads((context.out / "baseline" / "golden" / "metrics.json").read_text())
        assert compared["policy_digest"] == digest[baseline] * 64


@pytest.mark.parametrize(("answer", "words"), [("inconclusive", "did not fail"), ("pass", "promotes it")])
def test_an_answered_gate_moves_nothing_that_trains(tmp_path: Path, answer: str, words: str) -> None:
    held, answered = begin(tmp_path / "a", "inconclusive"), begin(tmp_path / "b", answer)
    assert digest_tree(held.start.out) == digest_tree(answered.start.out)
    assert words in answered.told["why"]


def after(tmp_path: Path, first: Begun, answer: str, number: int = 2, **changes: Any) -> Begun:
    """Begin a later round after one whose candidate the gate answered so about."""
    name = f"mend@{number - 1}"
    made = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
    inputs = {
        "before": first.evidence.out,
        f"policy.{name}": policy(made / "mend", name),
        f"eval.{name}.golden": fake_evaluation(made / "eval", set(range(20)), "e", name="golden"),
        "gate": record(made / "gate", answer, name),
    }
    return begun(tmp_path, {**ASKED, "round": number, "candidates": [name], "champion": False, **changes}, inputs)


def policies(of: Begun) -> tuple[str, str, str | None]:
    """Return whose weights the round starts from, by its files and by its words, and whom gates compare with."""
    return of.weights, of.told["policy"], of.told["baseline"]


def test_after_a_failed_gate_a_later_round_starts_from_the_champion_of_the_moment(tmp_path: Path) -> None:
    promoted = begin(tmp_path, "pass", champion=True)
    failed = after(tmp_path, promoted, "fail")
    assert policies(failed) == ("rl", "rl", "rl")
    kept = after(tmp_path, promoted, "inconclusive")
    assert policies(kept) == ("mend@1", "mend@1", "rl"), "an undecided candidate is not the champion"
    again = after(tmp_path, kept, "fail", 3)
    assert policies(again) == ("rl", "rl", "rl"), "the champion, not where the round before began"
    found = json.loads((again.evidence.out / "evaluations" / "golden" / "metrics.json").read_text())
    assert found["policy_digest"] == "a" * 64
    assert policies(after(tmp_path, failed, "fail", 3, start_from="candidate")) == ("mend@2", "mend@2", "rl")


def test_after_a_failed_gate_and_without_a_champion_a_later_round_starts_from_the_candidate(tmp_path: Path) -> None:
    failed = after(tmp_path, begin(tmp_path, "fail"), "fail")
    assert policies(failed) == ("mend@1", "mend@1", None)
    assert "there is no champion" in failed.told["why"]


def test_a_round_does_not_begin_from_a_damaged_gate_record(tmp_path: Path) -> None:
    begun_with = after(tmp_path, begin(tmp_path, "pass"), "pass").start
    (begun_with.inputs["gate"] / "gate.json").write_text("{")
    with pytest.raises(StateError, match=r"gate\.json: cannot be read"):
        rounds.start(node(tmp_path, begun_with.params, begun_with.inputs, "round.start"))


@pytest.mark.parametrize("do", ["ask_person", "stop_for_reward_fix"])
def test_a_round_goes_on_unless_a_remedy_stops_for_the_reward(tmp_path: Path, do: str) -> None:
    made = tmp_path / "remedy"
    made.mkdir()
    (made / "asks.jsonl").write_text(json.dumps({"case": "c", "do": do}) + "\n")
    context = node(tmp_path, {"remedy": "round1.remedy"}, {"remedy": made}, "round.proceed")
    rounds.proceed(context)
    decision = json.loads((context.out / "decision.json").read_text())
    assert (decision["go"], decision.get("held")) == ((True, None) if do == "ask_person" else (False, "round1.remedy"))
    start = tmp_path / "begun"
    start.mkdir()
    params = {"round": 2, "gain_on": "golden", "no_gain_rounds": 2, "candidates": {"1": ["mend@1"]}}
    further = node(tmp_path, params, {"evidence.1": start, "proceed": context.out}, "round.choose")
    assert ("stopped for the reward" in rounds.choose(further).notes[0]) is (do != "ask_person")
    assert json.loads((further.out / "decision.json").read_text())["go"] is (do == "ask_person")


def choose(tmp_path: Path, after: list[int], *, no_gain_rounds: int = 1, answer: str = "pass") -> tuple[bool, str]:
    """Decide about round n + 1 after rounds that solved so many more problems than they began with."""
    inputs: dict[str, Path] = {}
    window = range(max(1, len(after) + 1 - no_gain_rounds), len(after) + 1)
    for k in window:
        before, gain = 100, after[k - 1]
        start = tmp_path / f"start{k}-{len(list(tmp_path.iterdir()))}"
        fake_evaluation(start / "evaluations" / "golden", set(range(before)), "a", name="golden")
        inputs[f"evidence.{k}"] = start
        inputs[f"eval.{k}.mend@{k}"] = fake_evaluation(start / "after", set(range(before + gain)), "b", name="golden")
        inputs[f"gate.{k}"] = answered(start / "gate", answer, f"mend@{k}")
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


@pytest.mark.parametrize("answer", ["fail", "undecided_fails"])
def test_a_round_whose_gate_failed_gained_nothing(tmp_path: Path, answer: str) -> None:
    go, reason = choose(tmp_path, [10], answer=answer)
    assert not go
    assert "and its gate failed" in reason


def test_success_that_was_not_measured_is_no_gain(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    params = {"round": 2, "gain_on": "golden", "no_gain_rounds": 1, "candidates": {"1": ["mend@1"]}}
    context = node(tmp_path, params, {"evidence.1": start}, "round.choose")
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
    given = {
        "candidate.mend@1.golden": new,
        "evidence": start,
        **{k.replace("_", ".", 1): v for k, v in inputs.items()},
    }
    context = node(tmp_path, params, given)
    judging.gate(context)
    return json.loads((context.out / "gate.json").read_text())


def test_a_rounds_gate_compares_with_the_champion_as_the_round_began(tmp_path: Path) -> None:
    found = gate(tmp_path, begin(tmp_path / "a", "pass").evidence.out, NO_WORSE, HIGH)
    assert (found["answer"], found["baseline"], found["baseline_digest"]) == ("pass", "rl", "a" * 64)
    none = gate(tmp_path, begin(tmp_path / "b", "inconclusive").evidence.out, NO_WORSE, HIGH)
    assert none["baseline"] is None
    assert [r["answer"] for r in none["rows"]] == ["not_applicable", "pass"]


def test_a_round_that_changed_nothing_finds_its_candidate_promoted_already(tmp_path: Path) -> None:
    found = gate(tmp_path, begin(tmp_path / "a", "pass").evidence.out, HIGH, digest="a")
    assert found["answer"] == "already_promoted"


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
