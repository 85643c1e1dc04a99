import math

import pytest
import torch

from specs.self_teaching import Gated, SelfDistilled
from tasks.learning.algorithms import sdar
from tests.tasks.learning.algorithms.gradients import LOGPROBS, tensor, value_and_gradient

SPEC = SelfDistilled(type="self_distilled", form="gated", gated=Gated(coef=0.5))
TEACHER = [[-0.2, -2.9, torch.nan], [-0.9, -0.4, 0.0]]


def test_value_and_gradient_add_to_the_surrogates():
    plain = SPEC.model_copy(update={"gated": Gated.model_construct(coef=0.0, sharpness=5.0)})
    base, slope, _ = value_and_gradient(sdar.loss, plain, teacher_logprobs_BT=tensor(TEACHER))
    value, gradient, metrics = value_and_gradient(sdar.loss, SPEC, teacher_logprobs_BT=tensor(TEACHER))
    gap = [0.5, -0.5, -0.7, 0.0]
    gate = [1 / (1 + math.exp(-5 * g)) for g in gap]
    assert value - base == pytest.approx(0.5 * sum(a * b for a, b in zip(gate, gap, strict=True)) / 5)
    assert gradient[0][0] - slope[0][0] == pytest.approx(-0.5 * gate[0] / 5)
    assert gradient[0][2] == slope[0][2], "a token that the teacher is silent about has no gate"
    assert gradient[1][2] == 0.0
    assert metrics["gate"] == pytest.approx(sum(gate) / 5)


def test_a_token_that_the_teacher_likes_is_raised_more():
    gates = sdar.gate(tensor([[0.0, -3.0]]), tensor([[-1.0, -1.0]]), 5.0)[0]
    assert gates[0] > 0.99
    assert gates[1] < 0.01
    assert len(LOGPROBS) == 2
