import pytest
import torch

from specs.group_relative import GSPO
from tasks.learning.algorithms import gspo
from tests.tasks.learning.algorithms.gradients import batch, tensor, value_and_gradient

SPEC = GSPO(type="gspo")


def test_worked_example():
    log_ratio = tensor([[0.001, -0.0005, 0.0009], [0.002, 0.001, 0.0]]).requires_grad_()
    made = batch(log_ratio, [[0.0] * 3] * 2, [[1, 1, 1], [1, 1, 0]], [1.0, -1.0], "sequence")
    output = gspo.loss(made, SPEC)
    (gradient,) = torch.autograd.grad(output.loss, log_ratio)
    assert output.loss.item() == pytest.approx(0.000551, abs=2e-6)
    assert gradient.tolist() == [[0.0] * 3, pytest.approx([0.250375, 0.250375, 0.0], abs=2e-6)]
    assert output.metrics["clip_fraction"].item() == pytest.approx(0.5)


def test_every_token_of_a_trajectory_has_the_same_gradient():
    _, gradient, _ = value_and_gradient(gspo.loss, GSPO(type="gspo", clip_low=0.9, clip_high=9.0), "sequence")
    first, second = gradient
    ratios = tensor([(0.3 - 0.4 + 0.0) / 3, (1.3 + 0.3) / 2]).exp().tolist()
    assert first == pytest.approx([-ratios[0] / 6] * 3)
    assert second == pytest.approx([0.5 * ratios[1] / 4] * 2 + [0.0])
