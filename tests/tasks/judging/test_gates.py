import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.gates import Gate
from tasks.judging.gates import Evidence, GateRecord, choose_best, decide
from tasks.judging.results import Evaluated, Unusable
from tasks.statistics.looks import Asked, spend
from tests.tasks.judging.builders import evaluated, pair

CHAMPION = "champion"


def gate(*require: dict[str, Any], **changes: Any) -> Gate:
    return Gate.model_validate({"require": list(require), **changes})


def answer(
    spec: Gate,
    candidate: Evaluated | Unusable,
    baseline: Evaluated | Unusable | None = None,
    **changes: Any,
) -> GateRecord:
    evidence = Evidence(
        candidates={"rl": {"hidden": candidate}}, baseline=None if baseline is None else {"hidden": baseline}, **changes
    )
    return decide(spec, "ship", evidence)


LEAST = {"set": "hidden", "at_least": 0.9}
NO_WORSE = {"set": "hidden", "no_worse_by": 0.03}
BETTER = {"set": "hidden", "better_by": 0.0}


@pytest.mark.parametrize(
    ("right", "n", "expected"),
    [(370, 400, "pass"), (369, 400, "inconclusive"), (330, 400, "fail"), (9, 9, "inconclusive")],
)
def test_at_least_compares_the_lower_bound(right: int, n: int, expected: str):
    record = answer(gate(LEAST), evaluated([1] * right + [0] * (n - right)))
    assert record.answer == expected
    row = record.rows[0]
    assert row.interval is not None
    assert (row.interval[0] >= 0.9) == (expected == "pass")
    assert (row.interval[1] < 0.9) == (expected == "fail")
    assert row.sentence
    assert "hidden" in row.sentence


def test_at_most_compares_the_upper_bound():
    spec = gate({"metric": "invalid_call_rate", "set": "hidden", "at_most": 0.4})
    assert answer(spec, evaluated([1] * 100)).answer == "pass"
    spec = gate({"metric": "invalid_call_rate", "set": "hidden", "at_most": 0.1})
    assert answer(spec, evaluated([1] * 100)).answer == "fail"
    spec = gate({"metric": "invalid_call_rate", "set": "hidden", "at_most": 0.27})
    assert answer(spec, evaluated([1] * 100)).answer == "inconclusive"


def test_a_second_measurement_of_the_same_policy_does_not_fail():
    new, old = pair(both=123, solved=11, broken=17, neither=49)
    record = answer(gate(NO_WORSE), new, old)
    assert record.answer == "inconclusive"
    row = record.rows[0]
    assert (row.solved, row.broken, row.n) == (11, 17, 200)
    assert row.effect == pytest.approx(-0.03)
    assert row.smallest_effect == pytest.approx(0.066, abs=0.002)
    assert "80% power" in row.sentence


def test_a_regression_fails_and_lists_what_changed():
    new, old = pair(both=110, solved=6, broken=30, neither=54)
    record = answer(gate(NO_WORSE), new, old)
    assert record.answer == "fail"
    assert record.rows[0].p_fail == pytest.approx(3.5e-5, rel=0.02)
    changed = record.changed["hidden"]
    assert (changed["newly_solved_count"], changed["newly_broken_count"]) == (6, 30)
    assert changed["newly_broken"][0] == "p116"
    assert "regression is shown" in record.sentence


@pytest.mark.parametrize(("n", "expected"), [(149, "pass"), (148, "inconclusive"), (5, "inconclusive")])
def test_no_worse_without_one_changed_problem_needs_149(n: int, expected: str):
    new, old = pair(both=n, solved=0, broken=0, neither=0)
    record = answer(gate({"set": "hidden", "no_worse_by": 0.02}), new, old)
    assert record.answer == expected
    assert expected == "pass" or "149 pairs are needed" in record.sentence


def test_better_by():
    new, old = pair(both=100, solved=30, broken=6, neither=14)
    assert answer(gate(BETTER), new, old).answer == "pass"
    assert answer(gate({"set": "hidden", "better_by": 0.14}), new, old).answer == "inconclusive"
    assert answer(gate({"set": "hidden", "better_by": 0.3}), new, old).answer == "fail"
    assert answer(gate(BETTER), old, new).answer == "fail"
    assert answer(gate(BETTER), *pair(100, 11, 10, 29)).answer == "inconclusive"


def test_a_lower_rate_is_better_where_lower_is_better():
    clean, bad = evaluated([1] * 60, digest="c" * 64), evaluated([1] * 60, digest="b" * 64)
    for r in clean.problems.values():
        r.invalid_calls = 0
    spec = gate({"metric": "invalid_call_rate", "set": "hidden", "better_by": 0.0})
    assert answer(spec, clean, bad).answer == "pass"
    assert answer(spec, bad, clean).answer == "fail"


def test_reward_uses_its_own_units():
    spec = gate({"metric": "reward", "set": "hidden", "at_least": 0.5})
    record = answer(spec, evaluated([1] * 190 + [0] * 10))
    assert record.answer == "pass"
    assert record.rows[0].value == pytest.approx(0.9)
    new, old = pair(both=150, solved=0, broken=0, neither=0)
    assert answer(gate({"metric": "reward", "set": "hidden", "no_worse_by": 0.1}), new, old).answer == "pass"


def test_several_samples_are_clustered():
    alike, spread = evaluated([4] * 93 + [0] * 7, samples=4), evaluated([4] * 72 + [3] * 28, samples=4)
    assert answer(gate({"set": "hidden", "at_least": 0.88}), alike).answer == "inconclusive"
    assert answer(gate({"set": "hidden", "at_least": 0.88}), spread).answer == "pass"
    same = evaluated([4] * 72 + [3] * 28, samples=4, digest="b" * 64)
    record = answer(gate(NO_WORSE), spread, same)
    assert record.answer == "pass"
    assert record.rows[0].n == 100


def test_holm_over_the_rows():
    near = evaluated([1] * 370 + [0] * 30)
    alone = decide(gate(LEAST), "g", Evidence({"rl": {"hidden": near}}))
    assert alone.answer == "pass"
    weak = evaluated([1] * 371 + [0] * 29, name="golden")
    both = decide(
        gate(LEAST, {"set": "golden", "at_least": 0.9}), "g", Evidence({"rl": {"hidden": near, "golden": weak}})
    )
    assert both.answer == "inconclusive"
    assert [r.level for r in both.rows] == [0.05, 0.025]
    clear = evaluated([1] * 395 + [0] * 5, name="golden")
    both = decide(
        gate(LEAST, {"set": "golden", "at_least": 0.9}), "g", Evidence({"rl": {"hidden": near, "golden": clear}})
    )
    assert both.answer == "pass"


def test_looks_spend_alpha_and_a_used_up_set_decides_nothing():
    near = evaluated([1] * 370 + [0] * 30)
    spec = gate(LEAST, looks=3)
    assert answer(spec, near).answer == "inconclusive"
    first = answer(spec, evaluated([1] * 375 + [0] * 25))
    assert (first.answer, first.look, first.looks) == ("pass", 1, 3)
    assert first.alpha_of_look == pytest.approx(0.0226, abs=1e-4)
    a, b, c = (Asked(n * 64, spend(0.05, 3, i)) for i, n in enumerate("abc", 1))
    third = answer(spec, evaluated([1] * 380 + [0] * 20), asked=[a, b])
    assert (third.answer, third.look, third.alpha_before) == ("pass", 3, a.alpha + b.alpha)
    asked = [a, Asked("d" * 64, b.alpha), c]
    again = answer(spec, evaluated([1] * 380 + [0] * 20), asked=asked)
    assert (again.look, again.alpha_of_look, again.alpha_before) == (2, b.alpha, a.alpha)
    used = answer(spec, evaluated([1] * 400), asked=[a, b, c])
    assert (used.answer, used.spent) == ("inconclusive", 0.0)
    assert "used up" in used.sentence
    assert "only new problems help" in used.sentence


def test_more_looks_than_were_declared_before_spend_what_is_left_of_alpha():
    good = evaluated([1] * 400)
    once = [Asked("a" * 64, 0.05)]
    raised = answer(gate(LEAST, looks=5), good, asked=once)
    assert (raised.answer, raised.alpha_of_look) == ("inconclusive", 0.0)
    assert "only new problems help" in raised.sentence
    assert "declare more looks" not in raised.sentence
    asked: list[Asked] = []
    for number, looks in enumerate([3, 3, 9, 9, 9, 30, 30, 30, 30, 30, 30]):
        record = answer(gate(LEAST, looks=looks), good, asked=asked)
        assert record.alpha_of_look <= spend(0.05, looks, number + 1)
        asked.append(Asked(str(number), record.spent))
    assert sum(a.alpha for a in asked) <= 0.05 + 1e-12
    lowered = answer(gate(LEAST, looks=1), good, asked=[Asked("a" * 64, 0.02)])
    assert lowered.answer == "inconclusive"
    assert "or declare more looks: 0.03 of alpha is left for them" in lowered.sentence


def test_what_tested_nothing_spends_nothing():
    assert answer(gate(LEAST), evaluated([1] * 400)).spent == pytest.approx(0.05)
    assert answer(gate(NO_WORSE), evaluated([1] * 400)).spent == 0.0
    assert answer(gate(LEAST), Unusable("damaged")).spent == 0.0


@pytest.mark.parametrize(("declared", "result"), [("hold", "held"), ("fail", "gate_failed"), ("pass_on", "completed")])
def test_the_record_says_what_follows_from_its_answer(declared: str, result: str):
    spec = gate(LEAST, on_inconclusive=declared)
    found = [answer(spec, evaluated([1] * n + [0] * (400 - n))).result for n in (370, 369, 330)]
    assert found == ["completed", result, "gate_failed"]


def test_first_run_asks_what_needs_no_baseline():
    spec = gate(LEAST, NO_WORSE)
    record = answer(spec, evaluated([1] * 380 + [0] * 20))
    assert record.answer == "pass"
    assert [r.answer for r in record.rows] == ["pass", "not_applicable"]
    assert "(1 not applicable)" in record.sentence
    assert any("first run" in n for n in record.notes)
    only = answer(gate(NO_WORSE), evaluated([1] * 400))
    assert only.answer == "inconclusive"
    assert "without a baseline" in only.sentence


@pytest.mark.parametrize("whose", ["candidate", "baseline"])
def test_unusable_evidence_never_passes(whose: str):
    good, bad = evaluated([1] * 400), Unusable("problems.jsonl is damaged")
    record = answer(gate(NO_WORSE), good, bad) if whose == "baseline" else answer(gate(LEAST), bad)
    assert record.answer == "inconclusive"
    assert "problems.jsonl is damaged" in record.sentence


def test_a_set_that_was_not_asked_is_missing_evidence():
    spec = gate(LEAST, {"set": "golden", "at_least": 0.5})
    record = answer(spec, evaluated([1] * 400))
    assert record.answer == "inconclusive"
    assert "not evaluated on golden" in record.sentence


@pytest.mark.parametrize(("invalid", "expected"), [(20, "pass"), (21, "inconclusive")])
def test_too_many_invalid_verdicts_refuse_the_evidence(invalid: int, expected: str):
    record = answer(gate(LEAST), evaluated([1] * (400 - invalid) + [None] * invalid))
    assert record.answer == expected
    assert record.rows[0].invalid_share == invalid / 400
    assert expected == "inconclusive" or record.rows[0].n == 380


def test_baseline_with_other_problems_or_temperature_is_not_compared():
    good = evaluated([1] * 400)
    assert "different problems" in answer(gate(NO_WORSE), good, evaluated([1] * 400, prefix="q")).sentence
    hot = evaluated([1] * 400)
    hot.temperature = 0.5
    assert "different temperatures" in answer(gate(NO_WORSE), good, hot).sentence


def test_candidate_is_the_champion():
    record = answer(gate(LEAST), evaluated([0] * 400), champion_digest="d" * 64)
    assert record.answer == "already_promoted"
    assert record.rows == []


def test_candidate_that_gave_way_is_not_promoted_again():
    record = answer(gate(LEAST), evaluated([1] * 400), champion_digest="c" * 64, former=["d" * 64])
    assert record.answer == "superseded"
    assert record.rows == []


def test_evaluations_of_two_policies_are_not_one_candidate():
    spec = gate(LEAST, {"set": "golden", "at_least": 0.5})
    sets: dict[str, Evaluated | Unusable] = {
        "hidden": evaluated([1] * 400),
        "golden": evaluated([1] * 400, digest="e" * 64, name="golden"),
    }
    record = decide(spec, "g", Evidence({"rl": sets}))
    assert record.answer == "inconclusive"
    assert "2 different policies" in record.sentence


def test_regressed_cases_are_counted():
    spec = gate({"metric": "regressed_cases", "set": "hidden", "at_most": 1})
    fine = evaluated([1] * 5, greedy=[True] * 4 + [False])
    assert answer(spec, fine).answer == "pass"
    assert answer(spec, evaluated([1] * 5, greedy=[True] * 3 + [False] * 2)).answer == "fail"
    unsure = answer(spec, evaluated([1] * 5, greedy=[True] * 3 + [False, None]))
    assert unsure.answer == "inconclusive"
    assert "1 have no verdict" in unsure.sentence
    empty = answer(gate(LEAST | {"at_least": 0.0}, {"metric": "regressed_cases", "set": "hidden", "at_most": 0}), fine)
    assert empty.answer == "fail"
    assert answer(spec, evaluated([])).rows[0].answer == "not_applicable"


def test_cases_that_were_open_before_do_not_count():
    spec = gate({"metric": "regressed_cases", "set": "hidden", "at_most": 0})
    now, before = evaluated([0, 1], greedy=[False, True]), evaluated([0, 1], greedy=[False, True])
    record = answer(spec, now, before)
    assert record.answer == "pass"
    assert "also failed before" in record.rows[0].sentence
    assert answer(spec, now).answer == "fail"
    assert answer(spec, evaluated([0, 2, 1], samples=2), None).rows[0].value == 2


def test_best_is_chosen_on_the_first_set_and_pays_for_it():
    stages: dict[str, dict[str, Evaluated | Unusable]] = {
        "sft": {"hidden": evaluated([1] * 300 + [0] * 100, digest="1" * 64)},
        "rft": {"hidden": evaluated([1] * 370 + [0] * 30, digest="2" * 64)},
        "rl": {"hidden": evaluated([1] * 370 + [0] * 30, digest="3" * 64)},
    }
    record = decide(gate(LEAST, candidate="best"), "g", Evidence(stages))
    assert (record.candidate, record.candidate_digest) == ("rft", "2" * 64)
    assert record.answer == "inconclusive"
    assert "chosen among 3 stages" in record.notes[0]
    assert record.rows[0].p == pytest.approx(3 * 0.04779, rel=0.01)
    stages["sft"]["hidden"] = Unusable("gone")
    assert choose_best(stages, "hidden")[0] is None
    assert decide(gate(LEAST, candidate="best"), "g", Evidence(stages)).answer == "inconclusive"
    assert decide(gate(LEAST, candidate="best"), "g", Evidence({})).answer == "inconclusive"
    assert decide(gate(LEAST), "g", Evidence({})).sentence == "there is no candidate"


def test_the_same_evidence_gives_the_same_record_and_it_is_strict_json():
    new, old = pair(both=110, solved=20, broken=10, neither=60)
    spec = gate(NO_WORSE, LEAST)
    first, second = answer(spec, new, old), answer(spec, new, old)
    assert dataclasses.asdict(first) == dataclasses.asdict(second)
    text = json.dumps(first.to_dict(), allow_nan=False)
    assert json.loads(text)["rows"][0]["method"].startswith("exact paired test")
    assert "gate ship" in first.text
    assert len(first.text.splitlines()) >= 5


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=40),
    st.sampled_from([LEAST, NO_WORSE, BETTER, {"set": "hidden", "at_most": 0.3}]),
)
def test_never_passes_and_fails_at_once_and_never_passes_on_thin_evidence(
    right: list[int | None], need: dict[str, Any]
):
    old = evaluated([1] * len(right), digest="b" * 64)
    record = answer(gate(need), evaluated(right), old)
    share = sum(r is None for r in right) / len(right)
    assert record.answer in ("pass", "fail", "inconclusive")
    assert share <= 0.05 or record.answer == "inconclusive"
    row = record.rows[0]
    assert row.p is None or row.p_fail is None or row.p > 0.05 or row.p_fail > 0.05
