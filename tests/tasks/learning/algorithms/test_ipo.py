import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.preference import IPO
from tasks.learning.algorithms import ipo
from tests.tasks.learning.algorithms.pairs import WORKED, even, pair_batch, slopes


def test_worked_example_by_mean_and_by_sum():
    _, batch = pair_batch(*WORKED)
    by_mean = ipo.loss(batch, IPO(type="ipo"))
    assert by_mean.loss.item() == pytest.approx(23.200278, abs=2e-6)
    assert by_mean.metrics["margin"].item() == pytest.approx(0.183333, abs=2e-6)
    assert ipo.loss(batch, IPO(type="ipo", lengths="sum")).loss.item() == pytest.approx(9.0)


@given(margin=st.floats(-20, 20), tau=st.floats(0.05, 1))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_the_push_is_linear_and_ends_at_the_margin(margin, tau):
    logprobs, batch = pair_batch([even(margin, 2), even(0.0, 3)], [even(0.0, 2), even(0.0, 3)])
    ipo.loss(batch, IPO(type="ipo", lengths="sum", tau=tau)).loss.backward()
    expected = 2 * (margin - 1 / (2 * tau))
    assert slopes(logprobs)[0].tolist() == pytest.approx([expected, expected, 0.0], abs=1e-6)
    assert slopes(logprobs)[1].tolist() == pytest.approx([-expected] * 3, abs=1e-6)
