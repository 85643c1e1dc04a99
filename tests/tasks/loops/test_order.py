from collections import Counter

from specs.records import Problem
from tasks.loops.order import ProblemOrder


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
