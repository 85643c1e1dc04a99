from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.supervised import SupervisedBatch
from tasks.loops.batches import batch_plan, shares

LENGTHS = [5 + 7 * (i % 9) for i in range(60)]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    tokens=st.integers(30, 200),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_every_epoch_holds_every_row_once_within_the_token_limit(lengths, tokens, seed):
    one = batch_plan(lengths, SupervisedBatch(tokens=tokens), 1, seed)
    assert Counter(i for step in one for i in step) == Counter(range(len(lengths)))
    assert all(len(s) == 1 or max(lengths[i] for i in s) * len(s) <= tokens for s in one)
    assert batch_plan(lengths, SupervisedBatch(tokens=tokens), 2, seed)[: len(one)] == one


def test_batches_by_rows_keep_the_smaller_last_one():
    plan = batch_plan(LENGTHS, SupervisedBatch(rows=8), 1, 0)
    assert sorted(map(len, plan)) == [4] + [8] * 7


def test_epochs_differ_and_a_part_of_one_is_cut():
    plan = batch_plan(LENGTHS, SupervisedBatch(rows=10), 1.5, 0)
    assert len(plan) == 9
    assert plan[:6] != plan[6:]
    assert plan == batch_plan(LENGTHS, SupervisedBatch(rows=10), 1.5, 0)
    assert plan != batch_plan(LENGTHS, SupervisedBatch(rows=10), 1.5, 1)


def test_a_mixture_follows_its_weights_exactly():
    sets = ["a"] * 50 + ["b"] * 10
    plan = batch_plan(LENGTHS, SupervisedBatch(rows=6), 2, 0, sets=sets, weights={"a": 1.0, "b": 1.0})
    drawn = Counter(sets[i] for step in plan for i in step)
    assert drawn == {"a": 60, "b": 60}
    times = Counter(i for step in plan for i in step)
    assert {times[i] for i in range(50, 60)} == {6}
    assert {times[i] for i in range(50)} == {1, 2}


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (10, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 3, "c": 3}),
        (7, {"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 4, "b": 2, "c": 1}),
    ],
)
def test_shares_sum_to_the_total(total, weights, expected):
    assert shares(total, weights) == expected
