import pytest
import torch

from specs.group_relative import CISPO
from tasks.learning.algorithms import cispo
from tests.tasks.learning.algorithms.gradients import batch, tensor


@pytest.mark.parametrize(
    ("bounds", "value", "gradient", "share"),
    [
        ({"ratio_low": 0.8, "ratio_high": 1.28}, 1.286244, [-0.426667, -0.27291, -0.266667], 2 / 3),
        ({"ratio_high": 5.0}, 0.861293, [-0.906094, -0.27291, -0.045112], 0.0),
    ],
)
def test_worked_examples(bounds, value, gradient, share):
    logprobs = tensor([[-0.5, -1.0, -3.0]]).requires_grad_()
    output = cispo.loss(batch(logprobs, [[-1.5, -0.8, -1.0]], [[1, 1, 1]], [1.0]), CISPO(type="cispo", **bounds))
    assert output.loss.item() == pytest.approx(value, abs=2e-6)
    assert torch.autograd.grad(output.loss, logprobs)[0][0].tolist() == pytest.approx(gradient, abs=2e-6)
    assert output.metrics["clip_fraction"].item() == pytest.approx(share)
