import math

import pytest

from specs.preference import SimPO
from tasks.learning.algorithms import simpo
from tests.tasks.learning.algorithms.pairs import WORKED, even, pair_batch, slopes


def test_worked_example_in_value_and_gradient():
    logprobs, batch = pair_batch(WORKED[0])
    output = simpo.loss(batch, SimPO(type="simpo"))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(1.136871, abs=2e-6)
    push = 2.5 / (1 + math.exp(2.5 * (0.25 - 0.55)))
    assert slopes(logprobs)[0].tolist() == pytest.approx([-push / 10] * 10 + [0.0] * 2)
    assert slopes(logprobs)[1].tolist() == pytest.approx([push / 12] * 12)


def test_repeating_a_side_changes_nothing():
    spec = SimPO(type="simpo")
    once = simpo.loss(pair_batch([even(-2.0, 2), even(-6.0, 3)])[1], spec).loss.item()
    twice = simpo.loss(pair_batch([even(-4.0, 4), even(-6.0, 3)])[1], spec).loss.item()
    assert twice == pytest.approx(once)
