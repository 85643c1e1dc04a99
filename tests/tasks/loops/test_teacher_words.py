"""Orders of a teacher: which of their pairs train."""

from dataclasses import replace
from itertools import combinations

import pytest

from specs.ladder import Ranking
from specs.records import NOT_TRAINED, TeacherSignal
from tasks.loops.teacher_words import ordered
from tests.tasks.teachers.test_asks import tried, turn


def signal(*tiers, failure=None):
    names = [name for tier in tiers for name in tier]
    content = None if failure else {"tiers": [list(tier) for tier in tiers]}
    return TeacherSignal(
        "s", "rank", "who", "who", "rank@1", "p", "stock", names, content=content, failure=failure
    )  # fmt: skip


def own(**success):
    return {name: tried(name, turn("look", at=name), success=good) for name, good in success.items()}


def pairs(taken):
    return [(p.chosen, p.rejected) for p in taken.pairs]


def test_a_judge_that_likes_length_says_the_same_in_both_orders():
    longer = {"a": 3, "b": 30}
    both = [signal(*[[n] for n in sorted(shown, key=lambda n: -longer[n])]) for shown in (["a", "b"], ["b", "a"])]
    taken = ordered(both, own(a=False, b=False), Ranking())
    assert pairs(taken) == [("b", "a")]
    assert (taken.agreed, taken.disagreed) == (1, 0)


def test_a_judge_that_likes_the_first_gives_no_pair():
    taken = ordered([signal(["a"], ["b"]), signal(["b"], ["a"])], own(a=True, b=False), Ranking())
    assert pairs(taken) == []
    assert taken.to_json()["order_dependent"] == 1.0


def test_ties_are_no_pairs_and_those_of_a_problem_weigh_one_together():
    order = [signal(["a"], ["b", "c"], ["d"])] * 2
    taken = ordered(order, own(a=True, b=False, c=False, d=False), Ranking())
    assert pairs(taken) == [("a", "d"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    assert [p.weight for p in taken.pairs] == [0.2] * 5
    assert [p.margin for p in taken.pairs] == [2.0, 1.0, 1.0, 1.0, 1.0]
    clearest = ordered(order, own(a=True, b=False, c=False, d=False), Ranking(choose="best_worst"))
    assert [(p.chosen, p.rejected, p.weight) for p in clearest.pairs] == [("a", "d", 1.0)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"b": {"success": True}}, "against_the_verifiers"),
        ({"a": {"status": "truncated"}}, "chosen_was_cut"),
        ({"b": {"tags": [NOT_TRAINED]}}, "token_drift"),
    ],
)
def test_what_must_not_train_is_counted(change, reason):
    mine = own(a=False, b=False)
    mine |= {name: replace(mine[name], **fields) for name, fields in change.items()}
    taken = ordered([signal(["a"], ["b"])] * 2, mine, Ranking())
    assert pairs(taken) == []
    assert taken.left_out == {reason: 1}


def test_one_order_alone_is_not_enough_where_two_were_asked_for():
    answers = [signal(["a"], ["b"]), signal(failure="unreadable: missing B")]
    taken = ordered(answers, own(a=True, b=False), Ranking())
    assert taken.left_out == {"unreadable": 1, "one_order_alone": 1}
    assert pairs(ordered(answers[:1], own(a=True, b=False), Ranking(swaps=False))) == [("a", "b")]


def test_all_pairs_are_those_of_different_tiers():
    names = "abcd"
    taken = ordered([signal(*[[n] for n in names])] * 2, own(a=True, b=False, c=False, d=False), Ranking())
    assert sorted(pairs(taken)) == list(combinations(names, 2))
