import json
import math

import pytest

from tasks.judging.compare import compare, text
from tests.tasks.judging.builders import evaluated, pair


def test_two_measurements_of_one_policy_do_not_differ():
    new, old = pair(both=123, solved=11, broken=17, neither=49)
    found = compare(old, new)
    row = found["metrics"][0]
    assert (row["metric"], row["better"], row["worse"], row["pairs"]) == ("success", 11, 17, 200)
    assert row["p"] == pytest.approx(0.345, abs=5e-4)
    assert row["low"] < row["effect"] < 0 < row["high"]
    assert row["effect"] == pytest.approx(row["b"]["value"] - row["a"]["value"])
    assert (row["mid_p"], row["chi_square"]) == pytest.approx((0.2649, 25 / 28), abs=5e-4)
    assert row["se"] == pytest.approx(math.sqrt(28 - 36 / 200) / 200)
    head, line = (row.split() for row in text(found).splitlines()[1:3])
    assert head[-7:] == ["se", "p", "mid-p", "chi2", "better", "worse", "pairs"]
    assert line[-7:] == ["0.0264", "0.345", "0.265", "0.89", "11", "17", "200"]


def test_a_regression_is_seen_and_its_problems_are_named():
    new, old = pair(both=110, solved=6, broken=30, neither=54)
    for p in new.problems.values():
        p.text = f"please\ndo {p.id}"
    found = compare(old, new)
    row = found["metrics"][0]
    assert row["p"] == pytest.approx(7e-5, rel=0.01)
    assert row["high"] < 0
    written = text(found)
    assert "newly broken: p116  please do p116" in written
    assert "move: " in written
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_what_does_not_match_is_counted():
    first, second = evaluated([1] * 10), evaluated([1] * 12, samples=1)
    second.temperature = 0.5
    notes = " ".join(compare(first, second)["notes"])
    for part in ("0 problems that only a was asked, 2 that only b", "temperatures", "same policy"):
        assert part in notes


def test_several_samples_and_a_missing_metric():
    first, second = evaluated([1, 2, 3, 4] * 5, samples=4), evaluated([2, 2, 4, 4] * 5, samples=4)
    found = compare(first, second)
    assert "success_greedy" not in [r["metric"] for r in found["metrics"]]
    row = found["metrics"][0]
    assert row["effect"] == pytest.approx(0.125)
    assert row["chi_square"] is None, "too few problems differ"
    assert row["mid_p"] < row["p"]
    nothing = compare(evaluated([None]), evaluated([None]))
    assert "success" not in [r["metric"] for r in nothing["metrics"]]
    assert text(nothing)
