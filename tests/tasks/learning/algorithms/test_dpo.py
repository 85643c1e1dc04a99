import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.preference import DPO
from tasks.learning.algorithms import dpo
from tests.tasks.learning.algorithms.pairs import WORKED, even, pair_batch, slopes


def value(delta, **fields):
    _, batch = pair_batch([even(delta / 2, 3), even(-delta / 2, 5)], [even(0.0, 3), even(0.0, 5)])
    return dpo.loss(batch, DPO(type="dpo", **fields)).loss.item()


def test_worked_example_in_value_and_gradient():
    logprobs, batch = pair_batch(*WORKED)
    output = dpo.loss(batch, DPO(type="dpo"))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(0.598139, abs=2e-6)
    assert output.metrics["margin"].item() == pytest.approx(2.0)
    assert output.metrics["accuracy"].item() == pytest.approx(1.0)
    assert slopes(logprobs)[0].tolist() == pytest.approx([-0.045017] * 10 + [0.0] * 2, abs=2e-6)
    assert slopes(logprobs)[1].tolist() == pytest.approx([0.045017] * 12, abs=2e-6)


def test_label_smoothing_length_and_likelihood():
    e, b, d = 0.2, 0.1, 2.0
    right, wrong = math.log1p(math.exp(-b * d)), math.log1p(math.exp(b * d))
    _, batch = pair_batch(*WORKED)
    smooth = dpo.loss(batch, DPO(type="dpo", label_smoothing=e)).loss.item()
    assert smooth == pytest.approx((1 - e) * right + e * wrong)
    by_length = dpo.loss(batch, DPO(type="dpo", lengths="mean", beta=5)).loss.item()
    assert by_length == pytest.approx(math.log1p(math.exp(-5 * (0.1 + 1 / 12))))
    with_nll = dpo.loss(batch, DPO(type="dpo", nll_coef=0.5))
    assert with_nll.loss.item() == pytest.approx(right + 0.5 * 2.0)
    assert with_nll.metrics["chosen_nll"].item() == pytest.approx(2.0)


@given(delta=st.floats(-40, 40), beta=st.floats(0.01, 5))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_swapping_the_sides_of_a_pair_mirrors_it(delta, beta):
    assert value(delta, beta=beta) - value(-delta, beta=beta) == pytest.approx(-beta * delta, abs=1e-6)
    assert value(delta, beta=beta) >= 0


def test_extreme_ratios_give_numbers():
    for delta in (1e6, -1e6):
        logprobs, batch = pair_batch([even(delta, 4), even(-delta, 4)], [even(0.0, 4)] * 2)
        output = dpo.loss(batch, DPO(type="dpo"))
        output.loss.backward()
        assert math.isfinite(output.loss.item())
        assert torch.isfinite(slopes(logprobs)).all()


def test_pairs_count_by_weight():
    sides, reference = [even(1.0, 2), even(0.0, 2), even(-3.0, 2), even(0.0, 2)], [even(0.0, 2)] * 4
    _, batch = pair_batch(sides, reference, weights=[3.0, 1.0])
    first, second = value(1.0), value(-3.0)
    assert dpo.loss(batch, DPO(type="dpo")).loss.item() == pytest.approx(0.75 * first + 0.25 * second)
