"""Worked numbers of the statistics; each was computed independently before the code was written."""

import pytest

from tasks.statistics import looks, paired, pass_metrics, power
from tasks.statistics.intervals import wilson


def test_intervals_and_paired_tests():
    found = wilson(42, 60)
    assert (found.low, found.high) == pytest.approx((0.574913, 0.801018), abs=1e-6)
    b, c, n = 3, 11, 200
    assert paired.mcnemar_exact(b, c) == pytest.approx(0.057373, abs=1e-6)
    assert paired.mcnemar_exact(b, c, "worse") == pytest.approx(0.028687, abs=1e-6)
    assert paired.mcnemar_mid_p(b, c) == pytest.approx(0.035156, abs=1e-6)
    assert paired.mcnemar_chi_square(b, c) == pytest.approx(3.5)
    se = paired.difference_se(b, c, n)
    assert se == pytest.approx(0.018493, abs=1e-6)
    assert (b - c) / n == pytest.approx(-0.04)
    assert (-0.04 - 1.959964 * se, -0.04 + 1.959964 * se) == pytest.approx((-0.076246, -0.003754), abs=1e-6)


def test_pass_metrics():
    rows = [(3, 10), (0, 10), (10, 10)]
    at = {k: pass_metrics.over_problems(pass_metrics.pass_at_k, rows, k).value for k in (1, 2, 5)}
    hat = {k: pass_metrics.over_problems(pass_metrics.pass_hat_k, rows, k).value for k in (1, 2, 5)}
    assert at == pytest.approx({1: 0.433333, 2: 0.511111, 5: 0.638889}, abs=1e-6)
    assert hat == pytest.approx({1: 0.433333, 2: 0.355556, 5: 0.333333}, abs=1e-6)
    assert pass_metrics.positive_problem_rate(rows) == pytest.approx(0.666667, abs=1e-6)
    assert [pass_metrics.samples_to_success(n, c) for c, n in rows] == [2.75, 11.0, 1.0]


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(5, 1, 5, 1.0), (5, 1, 2, 0.4), (10, 3, 1, 0.3), (10, 3, 5, 0.916667), (5, 2, 3, 0.9)]
)
def test_pass_at_k_of_one_problem(n: int, c: int, k: int, expected: float):
    assert pass_metrics.pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-6)


def test_more_tries_than_samples_have_no_value():
    assert pass_metrics.pass_at_k(3, 0, 8) is None
    greedy = [(1, 1)] * 42 + [(0, 1)] * 78
    assert pass_metrics.over_problems(pass_metrics.pass_at_k, greedy, 1).value == pytest.approx(0.35)
    ten = pass_metrics.over_problems(pass_metrics.pass_at_k, greedy, 10)
    assert (ten.value, ten.problems, ten.left_out) == (None, 0, 120)


def test_a_second_measurement_of_the_same_policy_is_no_regression():
    assert paired.mcnemar_exact(11, 17) == pytest.approx(0.345, abs=5e-4)
    assert paired.mcnemar_exact(6, 30) == pytest.approx(7e-5, rel=0.01)


def test_sample_sizes():
    table = {
        0.02: [926, 1544, 3090, 4635],
        0.03: [411, 685, 1372, 2059],
        0.05: [147, 246, 493, 740],
        0.10: [None, 60, 122, 184],
    }
    for difference, row in table.items():
        assert [power.sample_size(difference, d) for d in (0.06, 0.10, 0.20, 0.30)] == row
    assert [power.unpaired_sample_size(d) for d in (0.10, 0.05, 0.03)] == pytest.approx([388, 1565, 4356], abs=1)


def test_successes_and_pairs_that_bounds_need():
    assert power.successes_needed(400, 0.9) == 370
    assert power.successes_needed(200, 0.9) == 187
    assert power.concordant_needed(0.02) == 149
    assert paired.noninferiority(0, 0, 149, 0.02)[0]
    assert not paired.noninferiority(0, 0, 148, 0.02)[0]
    assert not paired.noninferiority(0, 0, 5, 0.02)[0]
    assert power.discordant_needed(0.05) == 5
    assert power.discordant_needed(0.025) == 6


def test_wilson_half_widths():
    expected = {50: 0.134, 100: 0.096, 200: 0.069, 400: 0.049, 1000: 0.031}
    for n, half in expected.items():
        found = wilson(n / 2, n)
        assert (found.high - found.low) / 2 == pytest.approx(half, abs=6e-4)


def test_levels_of_three_looks():
    assert [looks.spend(0.05, 3, i) for i in (1, 2, 3)] == pytest.approx([0.022642, 0.015528, 0.011831], abs=1e-6)
    fleming = [looks.spend(0.05, 3, i, "obrien_fleming") for i in (1, 2, 3)]
    assert fleming == pytest.approx([0.000687, 0.015688, 0.033625], abs=1e-6)
