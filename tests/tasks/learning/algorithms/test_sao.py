import pytest
import torch

from specs.value_based import SAO
from tasks.learning.algorithms import sao
from tasks.learning.grouping import Rewarded
from tests.tasks.learning.algorithms.gradients import batch, tensor

SPEC = SAO(type="sao")


def test_drifted_tokens_have_no_gradient_and_stay_in_the_mean():
    logprobs = tensor([[-0.5, -1.0, -2.0, -0.2, -1.0]]).requires_grad_()
    by_token = tensor([[0.8, 0.8, -0.5, 0.3, -1.0]])
    output = sao.loss(batch(logprobs, [[-0.4, -2.9, -1.5, -0.2, -0.3]], [[1] * 5], by_token), SPEC)
    assert output.loss.item() == pytest.approx(0.084387, abs=2e-6)
    gradient = torch.autograd.grad(output.loss, logprobs)[0][0].tolist()
    assert gradient == pytest.approx([-0.144774, 0.0, 0.0, -0.06, 0.0], abs=2e-6)
    assert output.metrics["clip_fraction"].item() == pytest.approx(0.6)


def test_the_ratio_is_to_the_sampler_even_where_older_logprobs_are_given():
    made = batch(tensor([[-1.0]]), [[-1.0]], [[1]], [1.0])
    made.old_logprobs_BT = tensor([[-9.0]])
    assert sao.loss(made, SPEC).loss.item() == pytest.approx(1.0)


def test_rewards_go_to_the_critic_as_they_are():
    assert sao.advantages(Rewarded([0.0, None], ["a", "b"]), SPEC) == [0.0, None]
