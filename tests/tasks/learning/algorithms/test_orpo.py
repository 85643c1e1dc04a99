import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.preference import ORPO
from tasks.learning.algorithms import orpo
from tests.tasks.learning.algorithms.pairs import WORKED, even, pair_batch, slopes


def test_worked_example_in_value_and_gradient():
    logprobs, batch = pair_batch(WORKED[0])
    output = orpo.loss(batch, ORPO(type="orpo"))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(2.056118, abs=2e-6)
    assert output.metrics["log_odds_ratio"].item() == pytest.approx(0.284036, abs=2e-6)
    assert output.metrics["odds_loss"].item() == pytest.approx(0.56118, abs=2e-6)
    # d log odds / d m = 1 / (1 - e^m); d -log s(O) / dO = -s(-O)
    push = 0.1 / (1 + math.exp(0.284036))
    chosen, rejected = -1 - push / (1 - math.exp(-2.0)), push / (1 - math.exp(-2.25))
    assert slopes(logprobs)[0].tolist() == pytest.approx([chosen / 10] * 10 + [0.0] * 2, abs=1e-6)
    assert slopes(logprobs)[1].tolist() == pytest.approx([rejected / 12] * 12, abs=1e-6)


@given(m=st.floats(-60, 0))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_log_odds_are_stable_at_both_ends(m):
    mean = torch.tensor([m], dtype=torch.float64, requires_grad=True)
    found = orpo.log_odds(mean)
    found.sum().backward()
    p = math.exp(min(m, -1e-6))
    assert found.item() == pytest.approx(math.log(p) - math.log1p(-p), rel=1e-9, abs=1e-9)
    assert torch.isfinite(slopes(mean)).all()


def test_a_certain_side_gives_numbers():
    logprobs, batch = pair_batch([even(0.0, 3), even(-1e4, 3)])
    output = orpo.loss(batch, ORPO(type="orpo"))
    output.loss.backward()
    assert math.isfinite(output.loss.item())
    assert torch.isfinite(slopes(logprobs)).all()
