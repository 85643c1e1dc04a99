import math

import pytest
from pydantic import ValidationError

from specs.errors import TrainingError
from specs.records import Observation, Status, ToolCall, Turn
from specs.supervised import RFT, Diversity, RewardWeighted
from tasks.loops.selection import gain, overlap, require_positives, select, select_weighted
from tasks.statistics.intervals import Interval
from tasks.statistics.paired import tango_interval
from tests.tasks.learning.test_rows import A, U, trajectory

EXAMPLE = [
    ("t1", "a", 1.0, 30),
    ("t1", "b", 1.0, 20),
    ("t1", "c", 0.0, 10),
    ("t1", "d", 1.0, 20),
    ("t2", "e", 0.0, 5),
    ("t2", "f", 0.0, 6),
    ("t3", "g", 1.0, 9),
    ("t3", "h", 1.0, 8),
]


def drawn(problem, name, reward, tokens=3, *, status: Status = "finished", ids=None):
    made = trajectory([U] + [A] * tokens, name=name, status=status, ids=ids or [ord(name[0])] * (tokens + 1))
    made.problem_id, made.reward, made.success = problem, reward, None if reward is None else reward >= 1.0
    made.turns[0].start = 1
    made.turns[0].end = 1 + tokens
    return made


def test_worked_example_of_selection():
    chosen = select([drawn(*row) for row in EXAMPLE], RFT(type="rft", threshold=1.0, top_k=2, band=(0.05, 0.8)))
    assert chosen.pass_rates == {"t1": 0.75, "t2": 0.0, "t3": 1.0}
    assert chosen.ids == ["b", "d"]
    assert chosen.dropped == {"below_threshold": 3, "outside_band": 2, "beyond_top_k": 1}
    assert chosen.positive_rate == pytest.approx(2 / 3)
    assert chosen.to_json()["pass_rate_histogram"] == [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]


def test_rounds_are_compared_on_the_problems_that_they_share():
    before = {"a": 0.5, "b": 0.0, "c": 0.25, "d": 0.0, "gone": 1.0}
    now = {"a": 0.25, "b": 0.25, "c": 0.0, "d": 1.0, "new": 1.0}
    found = gain(before, now)
    assert (found.estimate, found.n) == (0.25, 4)
    assert found == tango_interval(2, 1, 4)
    assert found.low < 0 < found.high
    assert gain({"a": 1.0}, {"b": 1.0}) == Interval(0.0, -1.0, 1.0)


def calling(name, reward, *calls, ids):
    made = drawn("p", name, reward, tokens=len(ids) - 1, ids=ids)
    made.turns = [Turn(0, 0, "", ToolCall("find", {"x": x, "y": 1}, f"{name}{x}"), None) for x in calls]
    return made


def test_of_those_that_are_too_alike_the_better_one_is_used():
    made = [
        calling("a", 1.0, 1, 2, ids=[0, 1, 2, 3, 4, 5]),
        calling("b", 2.0, 1, 2, ids=[0, 6, 7, 8, 9]),
        calling("c", 1.0, 2, 1, ids=[0, 1, 2, 3, 4, 6]),
        calling("d", 1.0, ids=[0, 6, 7]),
        calling("e", 1.0, ids=[0, 9, 8]),
    ]

    def chosen(**spec):
        found = select(made, RFT(type="rft", top_k=None, diversity=Diversity(**spec)))
        return "".join(found.ids), found.dropped

    assert chosen(calls=True) == ("bcde", {"same_calls": 1})
    # the 3-grams of a and c: 123 234 345 and 123 234 346, two of four in common
    assert chosen(max_overlap=0.5) == ("abcde", {})
    assert chosen(max_overlap=0.49) == ("abde", {"overlap": 1})
    assert chosen(max_overlap=0.49, ngram=1) == ("ab", {"overlap": 3})
    assert chosen(calls=True, max_overlap=0.49) == ("bcde", {"same_calls": 1})
    best = select(made, RFT(type="rft", top_k=2, diversity=Diversity(calls=True)))
    assert (best.ids, best.dropped) == (["b", "c"], {"same_calls": 1, "beyond_top_k": 2})


def test_the_overlap_of_two_sets_is_a_share():
    assert overlap({(1,), (2,)}, {(2,), (3,)}) == pytest.approx(1 / 3)
    assert (overlap(set(), set()), overlap({(1,)}, set())) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, "expected calls: true, max_overlap or both"), ({"calls": True, "ngram": 4}, "ngram is not read without")],
)
def test_a_diversity_that_compares_nothing_is_refused(settings, told):
    with pytest.raises(ValidationError, match=told):
        Diversity(**settings)


def test_what_was_cut_never_counts_as_an_answer():
    made = [
        drawn("p", "a", 1.0, status="truncated"),
        drawn("p", "b", 1.0, status="truncated"),
        drawn("p", "c", 1.0),
        drawn("p", "d", 0.0, status="truncated"),
    ]
    chosen = select(made, RFT(type="rft"))
    assert (chosen.ids, chosen.dropped, chosen.pass_rates) == (["c"], {"truncated": 3}, {"p": 0.25})


def test_by_weight_all_of_solved_problems_train_and_none_of_the_others():
    made = [
        drawn("p", "a", 1.0), drawn("p", "b", 0.0), drawn("p", "c", 1.0, status="truncated"), drawn("q", "d", 0.0),
        drawn("q", "e", math.nan), drawn("r", "f", None),
    ]  # fmt: skip
    chosen = select_weighted(made, RewardWeighted(type="reward_weighted"))
    assert (chosen.ids, chosen.positive_rate) == (["a", "b"], pytest.approx(1 / 3))
    assert chosen.dropped == {"truncated": 1, "no_success": 1, "invalid": 2}
    every = RewardWeighted(type="reward_weighted", require_success=False)
    assert select_weighted(made, every).ids == ["a", "b", "d"]
    strict = RewardWeighted(type="reward_weighted")
    with pytest.raises(TrainingError, match=r"1 no_success.*require_success off"):
        require_positives(select_weighted([drawn("q", "d", 0.0)], strict), strict, "weigh")


def test_a_threshold_chooses_among_successes_and_makes_none_of_a_failure():
    made = [drawn("p", "a", 1.0), drawn("p", "b", 0.9), drawn("p", "c", 1.2)]
    made[1].success, made[2].success = True, False  # a failure that earned more, whatever the reward was
    chosen = select(made, RFT(type="rft", threshold=0.5))
    assert (chosen.ids, chosen.dropped) == (["a", "b"], {"below_threshold": 1})
    assert select(made, RFT(type="rft", threshold=0.95)).ids == ["a"]
    assert select(made, RFT(type="rft", require_success=False, threshold=0.95)).ids == ["a", "c"]


def test_what_did_not_finish_is_no_example():
    made = [drawn("p", "a", 1.0, status="turn_limit"), drawn("p", "b", 1.0), drawn("p", "c", 0.0, status="tool_error")]
    chosen = select(made, RFT(type="rft"))
    assert (chosen.ids, chosen.dropped) == (["b"], {"unfinished": 1, "below_threshold": 1})
    assert chosen.pass_rates["p"] == pytest.approx(1 / 3)


def test_invalid_and_infrastructure_take_no_part_in_the_rate():
    made = [drawn("p", "a", 1.0), drawn("p", "b", None), drawn("p", "c", 0.0, status="infrastructure")]
    chosen = select(made, RFT(type="rft"))
    assert (chosen.ids, chosen.pass_rates["p"]) == (["a"], 1.0)
    assert chosen.dropped == {"invalid": 1, "infrastructure": 1}


def test_repeats_and_tool_errors_are_left_out():
    same = [7, 8, 9, 9]
    made = [drawn("p", n, 1.0, ids=same) for n in "ab"] + [drawn("p", "c", 1.0)]
    wrong = ToolCall("f", {}, "", error="unknown_tool")
    made[2].turns = [
        Turn(1, 3, "", wrong, Observation({}, is_error=True)),
        Turn(3, 4, "", None, Observation({}, is_error=True)),
    ]
    spec = RFT(type="rft", top_k=None, max_tool_errors=1)
    chosen = select(made, spec)
    assert (chosen.ids, chosen.dropped) == (["a"], {"repeated": 1, "tool_errors": 1})
    assert select(made, RFT(type="rft", top_k=None, distinct=False, max_tool_errors=2)).ids == ["a", "b", "c"]


def test_nothing_selected_names_the_ways_out():
    chosen = select([drawn("p", "a", 0.0)], RFT(type="rft"))
    with pytest.raises(TrainingError, match=r"1 below_threshold.*0 of 1 problems.*demonstrations first"):
        require_positives(chosen, RFT(type="rft"), "harvest")
