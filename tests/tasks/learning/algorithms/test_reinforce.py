import pytest

from specs.group_relative import REINFORCE
from tasks.learning.algorithms import reinforce
from tasks.learning.grouping import Rewarded
from tests.tasks.learning.algorithms.gradients import value_and_gradient

REWARDED = Rewarded([1.0, 0.2, 0.0, 0.7], ["g"] * 4, [10, 40, 30, 20])


def advantages(rewarded, **spec):
    return reinforce.advantages(rewarded, REINFORCE(type="reinforce", **spec))


def test_value_and_gradient():
    value, gradient, metrics = value_and_gradient(reinforce.loss, REINFORCE(type="reinforce"), "sequence_sum")
    assert value == pytest.approx(-(1.0 * (-0.7 - 2.4 - 0.5) - 0.5 * (-0.2 - 0.4)) / 2)
    assert gradient == [pytest.approx([-0.5] * 3), pytest.approx([0.25, 0.25, 0.0])]
    assert metrics == {}


def test_baselines():
    mean = 1.9 / 4
    assert advantages(REWARDED) == pytest.approx([1 - mean, 0.2 - mean, -mean, 0.7 - mean])
    assert advantages(REWARDED, baseline="length_weighted") == pytest.approx([0.68, -0.12, -0.32, 0.38])
    assert advantages(REWARDED, baseline="second_best") == pytest.approx([0.655955, 0, 0, 0], abs=2e-6)
    assert advantages(Rewarded([1.0, 1.0, 0.0], ["g"] * 3), baseline="second_best") == [0.0, 0.0, 0.0]


def test_the_running_mean_starts_at_the_first_step_and_is_used_before_it_moves():
    spec = REINFORCE(type="reinforce", group_size=1, baseline="running_mean", decay=0.9)
    first = Rewarded([1.0, 0.0], ["a", "b"])
    assert reinforce.advantages(first, spec) == [0.5, -0.5]
    assert reinforce.next_mean(first, spec) == 0.5
    second = Rewarded([1.0, 1.0], ["a", "b"], running_mean=0.5)
    assert reinforce.advantages(second, spec) == [0.5, 0.5]
    assert reinforce.next_mean(second, spec) == pytest.approx(0.9 * 0.5 + 0.1)
    assert reinforce.next_mean(Rewarded([None], ["a"], running_mean=0.3), spec) == 0.3


def test_a_group_of_one_is_compared_with_the_step():
    assert advantages(Rewarded([1.0, 0.0], ["a", "b"]), group_size=1) == [0.5, -0.5]
