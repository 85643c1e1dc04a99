"""What an order of calls comes to: scores, and the call that is imitated."""

from collections import Counter

import pytest

from specs.ladder import Actions
from specs.records import TeacherSignal
from tasks.loops.judged_calls import Judged, judged

CALLS = {name: {"name": "look", "arguments": {"at": name}} for name in "abcd"}
RANK = Actions(form="rank")


def answer(order, best=None, shown="abc"):
    """Return an answer: `order` has a letter for each call, `=` between equals."""
    names = list(shown)
    tiers = [[names.index(c) for c in tier.split("=")] for tier in order.split(">")] if order else []
    content = {"tiers": tiers, "best": best and CALLS[best], "candidates": [CALLS[c] for c in shown]}
    return TeacherSignal("s", "action", "who", "who", "action_rank@1", "p", "stock", ["t"], 0, content=content)


def scores(found):
    return {call["arguments"]["at"]: score for call, score in found.scores}


def test_both_orders_are_one_score_each():
    pairs = Counter()
    found = judged([answer("a>b>c"), answer("a>c>b", shown="cba")], RANK, pairs)
    assert scores(found) == pytest.approx({"a": 1.0, "b": 0.25, "c": 0.25})
    assert pairs == {"agreed": 2, "disagreed": 1}
    assert found.imitated == CALLS["a"]


def test_a_teacher_that_likes_the_first_makes_all_even():
    pairs = Counter()
    found = judged([answer("a>b>c"), answer("c>b>a", shown="cba")], RANK, pairs)
    assert set(scores(found).values()) == {0.5}
    assert (found.imitated, found.why) == (None, "no_best")
    assert pairs == {"disagreed": 3}


def test_the_teachers_own_call_stands_above_all():
    found = judged([answer("a>b=c", "d"), answer("a>b=c", "d", shown="cba")], RANK, Counter())
    assert scores(found) == pytest.approx({"a": 2 / 3, "b": 1 / 6, "c": 1 / 6, "d": 1.0})
    assert found.scores[-1][0] == found.imitated == CALLS["d"]
    among = judged([answer("b>a>c", "b"), answer("b>c>a", "b", shown="cba")], RANK, Counter())
    assert scores(among) == pytest.approx({"b": 1.0, "a": 0.25, "c": 0.25})
    assert among.imitated == CALLS["b"]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([answer("a>b>c", "b"), answer("b>a>c", "b", shown="cba")], "not_first"),
        ([answer("a>b>c", "a"), answer("a>b>c", "d", shown="cba")], "best_differs"),
        ([answer("a=b>c"), answer("a=b>c", shown="cba")], "no_best"),
        ([answer("a>b>c"), answer("b>a>c", shown="cba")], "no_best"),
    ],
)
def test_a_teacher_that_contradicts_itself_is_not_followed(answers, why):
    assert judged(answers, RANK, Counter()).why == why


def test_one_order_alone_counts_where_one_was_asked_for():
    assert judged([answer("a>b>c")], RANK, Counter()) == Judged([], None, "one_order_alone")
    one = judged([answer("a>b>c")], Actions(form="rank", swaps=False), Counter())
    assert scores(one) == {"a": 1.0, "b": 0.5, "c": 0.0}
    single = judged([answer("a", "d", shown="a")], RANK, Counter())  # nothing to swap
    assert scores(single) == {"a": 0.0, "d": 1.0}
    assert judged([answer("", "d", shown="")], RANK, Counter()).imitated == CALLS["d"]
