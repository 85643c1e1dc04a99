from collections import Counter

import pytest

from specs.errors import DataError
from specs.records import Problem
from tasks.loops.order import ProblemOrder, with_adversarial


def some(count, prefix="p"):
    return [Problem(f"{prefix}{i}", "toy", "say", "train", "", {}, {}) for i in range(count)]


def draws(order, count, times):
    return [[p.id for p in order.draw(count)] for _ in range(times)]


def test_every_pass_holds_every_problem_once_and_no_draw_one_twice():
    order = ProblemOrder({"a": some(7)}, 3)
    drawn = draws(order, 5, 7)
    assert all(len(set(d)) == 5 for d in drawn)
    assert set(Counter(i for d in drawn for i in d).values()) == {5}
    assert drawn == draws(ProblemOrder({"a": some(7)}, 3), 5, 7)
    assert drawn != draws(ProblemOrder({"a": some(7)}, 4), 5, 7)


def test_fewer_problems_than_asked_for_gives_all():
    order = ProblemOrder({"a": some(3)}, 0)
    assert sorted(draws(order, 8, 1)[0]) == ["p0", "p1", "p2"]


def test_sets_are_mixed_by_weight():
    sets = {"a": some(40, "a"), "b": some(40, "b")}
    drawn = draws(ProblemOrder(sets, 0, {"a": 3.0, "b": 1.0}), 4, 5)
    assert all(Counter(i[0] for i in d) == {"a": 3, "b": 1} for d in drawn)
    unweighted = draws(ProblemOrder(sets, 0), 80, 1)[0]
    assert Counter(i[0] for i in unweighted) == {"a": 40, "b": 40}


def test_a_problem_in_two_sets_is_one_problem():
    order = ProblemOrder({"a": some(3), "b": some(4)}, 0, {"a": 1.0, "b": 1.0})
    assert order.size == 4
    assert sorted(draws(order, 9, 1)[0]) == ["p0", "p1", "p2", "p3"]


def test_adversarial_problems_have_their_share_and_sets_keep_their_weights():
    bad = [Problem(f"bad{i}", "e", "t", "train", "", {}, {}, ["adversarial"]) for i in range(3)]
    good, more = ([Problem(f"{n}{i}", "e", "t", "train", "", {}, {}) for i in range(20)] for n in ("good", "more"))
    sets, weights = with_adversarial({"a": [*bad, *good], "b": more}, None, 0.25)
    drawn = [p.id for _ in range(5) for p in ProblemOrder(sets, 1, weights).draw(8)]
    assert sum(name.startswith("bad") for name in drawn) == 10
    sets, weights = with_adversarial({"a": [*bad, *good], "b": more}, {"a": 1.0, "b": 3.0}, 0.2)
    drawn = ProblemOrder(sets, 1, weights).draw(10)
    assert [sum(p.id.startswith(n) for p in drawn) for n in ("bad", "good", "more")] == [2, 2, 6]
    with pytest.raises(DataError, match=r"no problem has the tag `adversarial`.*environments\.NAME\.adversarial"):
        with_adversarial({"a": good}, None, 0.5)
    with pytest.raises(DataError, match="no problem is without the tag"):
        with_adversarial({"a": bad}, None, 0.5)
