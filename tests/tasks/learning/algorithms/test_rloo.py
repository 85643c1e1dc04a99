import pytest

from specs.group_relative import RLOO
from tasks.learning.algorithms import rloo
from tasks.learning.grouping import Rewarded
from tests.tasks.learning.algorithms.gradients import value_and_gradient


def test_each_is_compared_with_the_others():
    rewarded = Rewarded([1, 0, 0, 1, 0.5, 0.5, 0.5], ["a"] * 4 + ["b"] * 3)
    found = rloo.advantages(rewarded, RLOO(type="rloo"))
    assert found == pytest.approx([0.666667, -0.666667, -0.666667, 0.666667, 0, 0, 0], abs=2e-6)
    partial = rloo.advantages(Rewarded([1.0, None, 0.0], ["a"] * 3), RLOO(type="rloo"))
    assert partial == [1.0, None, -1.0]


def test_value_and_gradient():
    value, gradient, _ = value_and_gradient(rloo.loss, RLOO(type="rloo"))
    assert value == pytest.approx((3.6 - 0.5 * 0.6) / 5)
    assert gradient == [pytest.approx([-0.2] * 3), pytest.approx([0.1, 0.1, 0.0])]
