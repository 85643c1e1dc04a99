import pytest

from specs.group_relative import DrGRPO
from tasks.learning.algorithms import dr_grpo
from tasks.learning.grouping import Rewarded
from tests.tasks.learning.algorithms.gradients import value_and_gradient

SPEC = DrGRPO(type="dr_grpo", clip_high=0.28)


def test_value_and_gradient_with_a_fixed_budget():
    value, gradient, _ = value_and_gradient(dr_grpo.loss, SPEC, 3)
    assert value == pytest.approx(-0.073457, abs=2e-6)
    assert gradient[0] == pytest.approx([0.0, -0.67032 / 6, -1 / 6], abs=2e-6)
    assert value_and_gradient(dr_grpo.loss, SPEC, 6)[0] == pytest.approx(value / 2)


def test_advantages_are_centred_and_not_scaled():
    assert dr_grpo.advantages(Rewarded([3.0, 0.0, 0.0], ["g"] * 3), SPEC) == pytest.approx([2.0, -1.0, -1.0])
