import pytest
import torch

from specs.value_based import TurnPPO
from tasks.learning.algorithms import turn_ppo
from tasks.tensors import token_weights, turn_numbers
from tests.tasks.learning.algorithms.gradients import batch, tensor

LOG_RATIO = [[0.1, -0.05, 9.0, 0.02, 0.03, 0.05, 9.0, -0.2, 0.1]]
MASK = [[1, 1, 0, 1, 1, 1, 0, 1, 1]]
ADVANTAGES = [[0.607206, 0.607206, 0, 0.3504, 0.3504, 0.3504, 0, 0.4, 0.4]]


@pytest.mark.parametrize(("ratio", "value"), [("product", -0.462508), ("geometric", -0.455116)])
def test_value_and_gradient(ratio, value):
    logprobs = tensor(LOG_RATIO).requires_grad_()
    made = batch(logprobs, [[0.0] * 9], MASK, tensor(ADVANTAGES), "turn")
    output = turn_ppo.loss(made, TurnPPO(type="turn_ppo", ratio=ratio))
    assert output.loss.item() == pytest.approx(value, abs=2e-6)
    gradient = torch.autograd.grad(output.loss, logprobs)[0][0].tolist()
    lengths = 1 if ratio == "product" else 3
    second = -0.3504 * float(tensor(0.10 / lengths).exp()) / 3 / lengths
    assert gradient[3:6] == pytest.approx([second] * 3)
    assert (gradient[2], gradient[6]) == (0.0, 0.0)


def test_turns_are_runs_of_trained_tokens_and_count_the_same():
    mask = torch.tensor([[True, True, False, True], [False, False, False, False]])
    assert turn_numbers(mask).tolist() == [[0, 0, -1, 1], [-1] * 4]
    assert token_weights(mask, "turn").tolist() == [[0.25, 0.25, 0.0, 0.5], [0.0] * 4]
