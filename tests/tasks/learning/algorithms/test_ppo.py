import pytest

from specs.value_based import PPO
from tasks.learning.algorithms import ppo
from tasks.learning.grouping import Rewarded
from tests.tasks.learning.algorithms.gradients import value_and_gradient


def test_value_and_gradient():
    value, gradient, _ = value_and_gradient(ppo.loss, PPO(type="ppo", clip_high=0.28))
    assert value == pytest.approx(-0.088148, abs=2e-6)
    assert gradient[1] == pytest.approx([0.36693, 0.134986, 0.0], abs=2e-6)


def test_rewards_go_to_the_critic_as_they_are():
    assert ppo.advantages(Rewarded([0.5, None, 0.5], ["a"] * 3), PPO(type="ppo")) == [0.5, None, 0.5]
