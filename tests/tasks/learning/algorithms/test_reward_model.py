"""Reward models by hand: Bradley-Terry with its margin and centring term, and labels of turns."""

import math

import pytest
import torch

from specs.reward_models import RewardModel, TurnLabels
from tasks.learning.algorithms import loss_for
from tasks.tensors import Batch


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def pairs(numbers, **more):
    """Return a batch of pairs whose rows are judged at their last token."""
    values = torch.zeros(len(numbers), 3)
    values[:, 2] = torch.tensor(numbers)
    values.requires_grad_()
    weights = torch.zeros(len(numbers), 3)
    weights[:, 2] = 1 / len(numbers)
    sides = torch.arange(len(numbers)).view(-1, 2)
    chosen = torch.tensor([True, False] * (len(numbers) // 2))
    return values, Batch(values, weights, pairs_P2=sides, preferred_B=chosen, **more)


def test_pairs_are_compared_by_bradley_and_terry():
    values, batch = pairs([1.0, -0.5, 0.2, 0.6])
    output = loss_for(RewardModel(type="reward_model", center_coef=0.0))(batch)
    expected = (math.log1p(math.exp(-1.5)) + math.log1p(math.exp(0.4))) / 2
    assert float(output.loss.detach()) == pytest.approx(expected, abs=1e-6)
    assert float(output.metrics["accuracy"]) == pytest.approx(0.5)
    assert float(output.metrics["margin"]) == pytest.approx((1.5 - 0.4) / 2, abs=1e-6)
    output.loss.backward()
    slopes = [-sigmoid(-1.5) / 2, sigmoid(-1.5) / 2, -sigmoid(0.4) / 2, sigmoid(0.4) / 2]
    assert values.grad is not None
    torch.testing.assert_close(values.grad[:, 2], torch.tensor(slopes))
    assert not values.grad[:, :2].any()


def test_the_margin_and_the_centre():
    _, batch = pairs([1.0, -0.5], baselines_B=torch.tensor([0.7, 0.7]))
    spec = RewardModel(type="reward_model", use_margin="reward", center_coef=0.1)
    expected = math.log1p(math.exp(-(1.5 - 0.7))) + 0.1 * 0.25
    assert float(loss_for(spec)(batch).loss.detach()) == pytest.approx(expected, abs=1e-6)


def test_turns_learn_their_labels_and_nothing_else_counts():
    values = torch.tensor([[9.0, 0.3, math.nan, -1.2]], requires_grad=True)
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5]])
    labels = torch.tensor([[5.0, 1.0, math.nan, 0.25]])
    output = loss_for(RewardModel(type="reward_model", learns="turns"))(Batch(values, weights, advantages_BT=labels))
    first = -math.log(sigmoid(0.3))
    second = -0.25 * math.log(sigmoid(-1.2)) - 0.75 * math.log(sigmoid(1.2))
    assert float(output.loss.detach()) == pytest.approx((first + second) / 2, abs=1e-6)
    assert float(output.metrics["label"]) == pytest.approx(0.625)
    output.loss.backward()
    expected = torch.tensor([[0.0, (sigmoid(0.3) - 1) / 2, 0.0, (sigmoid(-1.2) - 0.25) / 2]])
    torch.testing.assert_close(values.grad, expected)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"turns": TurnLabels(by="calls")}, "turns is not read with learns: pairs"),
        ({"learns": "turns", "use_margin": "reward"}, "use_margin is not read with learns: turns"),
        ({"learns": "turns", "center_coef": 0.5}, "center_coef is not read"),
    ],
)
def test_settings_of_the_other_form_are_refused(more, said):
    with pytest.raises(ValueError, match=said):
        RewardModel(type="reward_model", **more)
