import pytest
import torch

from specs.supervised import RFT
from tasks.learning.algorithms import rft
from tasks.tensors import Batch, token_weights


def test_gradient_pulls_every_trained_token_alike():
    logprobs = torch.tensor([[-0.5, -1.5], [-3.0, -7.0]], requires_grad=True)
    batch = Batch(logprobs, token_weights(torch.tensor([[True, True], [True, False]]), "token"))
    output = rft.loss(batch, RFT(type="rft"))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(5.0 / 3)
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-1.0, -1.0], [-1.0, 0.0]]) / 3)
