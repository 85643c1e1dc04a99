import pytest

from specs.group_relative import DAPO, SoftOverlong
from tasks.learning.algorithms import dapo
from tasks.learning.grouping import Rewarded
from tests.tasks.learning.algorithms.gradients import value_and_gradient

SOFT = SoftOverlong(limit=512, buffer=128)


def test_value_and_gradient():
    value, gradient, metrics = value_and_gradient(dapo.loss, DAPO(type="dapo"))
    assert value == pytest.approx(-0.088148, abs=2e-6)
    assert gradient[0] == pytest.approx([0.0, -0.134064, -0.2], abs=2e-6)
    assert metrics["clip_fraction"] == pytest.approx(0.2)


def test_the_penalty_lies_before_the_limit_and_counts_tokens():
    lengths = [384, 400, 448, 512, 520]
    assert [dapo.penalty(n, SOFT) for n in lengths] == [0.0, -0.125, -0.5, -1.0, -1.0]
    spec = DAPO(type="dapo", truncated="score", overlong=SOFT)
    rewards = dapo.penalised(Rewarded([1.0] * 5, ["g"] * 5, lengths), spec).rewards
    assert rewards == [1.0, 0.875, 0.5, 0.0, 0.0]
    assert dapo.penalised(Rewarded([None], ["g"], [520]), spec).rewards == [None]


def test_a_group_that_differs_in_length_alone_has_advantages_with_the_penalty():
    rewarded = Rewarded([1.0, 1.0], ["g"] * 2, [100, 512])
    assert dapo.advantages(rewarded, DAPO(type="dapo")) == [0.0, 0.0]
    spec = DAPO(type="dapo", truncated="score", overlong=SOFT)
    assert dapo.advantages(rewarded, spec) == pytest.approx([0.707106, -0.707106], abs=2e-6)
