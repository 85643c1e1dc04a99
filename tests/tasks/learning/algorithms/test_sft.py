import pytest
import torch

from specs.supervised import RFT, SFT
from tasks.learning.algorithms import loss_for
from tasks.tensors import Batch, token_weights

LOGPROBS = [[-0.5, -1.0, -0.2, -2.0], [-0.7, -0.3, -9.0, -9.0], [-9.0, -9.0, -9.0, -9.0]]
MASK = [[1, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("spec", [SFT(type="sft"), RFT(type="rft")])
@pytest.mark.parametrize(("aggregation", "expected"), [("token", 0.74), ("sequence", 0.7)])
def test_worked_example_of_masked_likelihood(spec, aggregation, expected):
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    weights = token_weights(torch.tensor(MASK), aggregation)
    output = loss_for(spec)(Batch(logprobs, weights))
    assert output.loss.item() == pytest.approx(expected, abs=2e-6)
    output.loss.backward()
    torch.testing.assert_close(logprobs.grad, -weights)


@pytest.mark.parametrize("spec", [SFT(type="sft"), RFT(type="rft")])
@pytest.mark.parametrize("bad", [float("-inf"), float("nan")])
def test_what_stands_in_masked_columns_does_not_matter(spec, bad):
    weights = token_weights(torch.tensor([[True, False]]), "token")
    logprobs = torch.tensor([[-1.0, bad]], requires_grad=True)
    output = loss_for(spec)(Batch(logprobs, weights))
    output.loss.backward()
    assert output.loss.item() == 1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.0, 0.0]]
