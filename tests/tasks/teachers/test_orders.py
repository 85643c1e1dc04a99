"""Orders of candidates as tiers."""

import pytest

from tasks.teachers.orders import agreed, preferred, shares


def test_a_share_is_that_of_the_others_below_and_half_of_the_equals():
    assert shares([["a"], ["b", "c"], ["d"]]) == pytest.approx({"a": 1.0, "b": 0.5, "c": 0.5, "d": 0.0})
    assert shares([["a", "b"]]) == {"a": 0.5, "b": 0.5}
    assert shares([["a"]]) == {"a": 1.0}
    assert shares([]) == {}


def test_pairs_that_two_orders_share_are_told_from_those_that_one_has():
    assert preferred([["a"], ["b", "c"]]) == {("a", "b"): 1, ("a", "c"): 1}
    assert agreed([[["a"], ["b"], ["c"]], [["a"], ["c"], ["b"]]]) == ({("a", "b"): 1.5, ("a", "c"): 1.5}, 1)
    assert agreed([[["a"], ["b"]], [["a", "b"]]]) == ({}, 1)
