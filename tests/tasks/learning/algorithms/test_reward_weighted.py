import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.supervised import RewardWeighted
from tasks.learning.algorithms import reward_weighted
from tasks.learning.algorithms.reward_weighted import AGGREGATION, effective, mean_one, shares
from tasks.learning.batching import row_weights
from tasks.learning.rows import TrainingRow
from tasks.tensors import Batch
from tests.tasks.learning.algorithms.pairs import slopes

REWARDS, SUMS, TOKENS = [1.0, 0.0, 0.5, 0.25], [-6.0, -4.0, -9.0, -2.0], [6, 4, 6, 2]


def spec(**fields):
    return RewardWeighted(type="reward_weighted", among="all", **fields)


def whole_loss(chosen, sums=SUMS, tokens=TOKENS, given=None):
    """Return the loss of one step that holds everything."""
    weights = given if given is not None else mean_one(REWARDS, range(4), chosen)[0]
    scaled = reward_weighted.row_weights(weights, tokens, chosen)
    rows = [
        TrainingRow(id=str(i), source="s", ids=[0] * (n + 1), mask=[False] + [True] * n, weight=w)
        for i, (n, w) in enumerate(zip(tokens, scaled, strict=True))
    ]
    laid_out = row_weights(rows, AGGREGATION[chosen.denominator]).double()
    logprobs = torch.zeros(laid_out.shape, dtype=torch.float64)
    for i, (total, n) in enumerate(zip(sums, tokens, strict=True)):
        logprobs[i, 1 : n + 1] = total / n
    logprobs.requires_grad_()
    output = reward_weighted.loss(Batch(logprobs, laid_out), chosen)
    output.loss.backward()
    return output.loss.item(), slopes(logprobs)


def test_worked_example():
    assert shares(REWARDS, [0] * 4, 0.5) == pytest.approx([0.579259, 0.078394, 0.213097, 0.12925], abs=2e-6)
    found, bounded = mean_one(REWARDS, range(4), spec())
    assert (found, bounded) == (pytest.approx([2.317034, 0.313576, 0.852389, 0.517], abs=2e-6), 0)
    losses = {"sequences": 5.965503, "weighted_tokens": 1.120028, "tokens": 1.325667}
    for denominator, expected in losses.items():
        value, slope = whole_loss(spec(denominator=denominator))
        assert value == pytest.approx(expected, abs=2e-6)
        # the gradient is -w per trained token, whatever the denominator
        assert slope[0, 1].item() / slope[1, 1].item() == pytest.approx(found[0] / found[1], rel=1e-5)
        assert slope[0, 0].item() == 0.0


def test_within_a_problem_each_problem_counts_the_same():
    found = shares([1.0, 0.0, 5.0, 4.0, 3.0], ["a", "a", "b", "b", "b"], 0.5)
    assert sum(found[:2]) == pytest.approx(0.5)
    assert sum(found) == pytest.approx(1.0)


def test_large_weights_are_bounded_and_counted():
    found, bounded = mean_one([0.0] * 99 + [100.0], range(100), spec(max_weight=20.0))
    assert (found[-1], bounded) == (20.0, 1)
    assert effective([1.0, 1.0, 0.0, 0.0]) == pytest.approx(2.0)


@given(rewards=st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=8), shift=st.floats(-100, 100, width=16))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_weights_ignore_a_shift_and_follow_the_order_of_rewards(rewards, shift):
    found = shares(rewards, [0] * len(rewards), 0.5)
    assert shares([r + shift for r in rewards], [0] * len(rewards), 0.5) == pytest.approx(found, abs=1e-4)
    assert sum(found) == pytest.approx(1.0)
    assert found[rewards.index(max(rewards))] == max(found)


def test_several_rows_of_a_trajectory_count_once_in_the_mean():
    rows = reward_weighted.row_weights([3.0, 3.0, 1.0], [1, 1, 1], spec(denominator="sequences"), [0.5, 0.5, 1.0])
    assert rows == pytest.approx([1.5, 1.5, 0.5])


def test_equal_rewards_weigh_alike_and_give_plain_likelihood():
    value, _ = whole_loss(spec(), given=[1.0] * 4)
    assert value == pytest.approx(21 / 18)
