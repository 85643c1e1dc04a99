import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.statistics.distributions import (
    binomial_at_least,
    binomial_at_most,
    binomial_pmf,
    hypergeometric_at_most,
    quantile,
    upper_tail,
)
from tasks.statistics.intervals import (
    bounded_interval,
    clopper_pearson,
    cluster_interval,
    effective_size,
    independent_size,
    score_p,
    wilson,
)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.001, 0.999))
def test_binomial_tails_equal_sums(counts: tuple[int, int], p: float):
    k, n = counts
    pmf = [math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)]
    assert binomial_at_least(k, n, p) == pytest.approx(math.fsum(pmf[k:]), abs=1e-11)
    assert binomial_at_most(k, n, p) == pytest.approx(math.fsum(pmf[: k + 1]), abs=1e-11)
    assert binomial_pmf(k, n, p) == pytest.approx(pmf[k], abs=1e-11)


def test_draws_without_replacement():
    assert hypergeometric_at_most(1, 4, 4, 8) == pytest.approx(17 / 70), "Fisher's lady tasting tea"
    assert hypergeometric_at_most(0, 4, 5, 8) == 0.0
    assert hypergeometric_at_most(4, 4, 5, 8) == 1.0
    assert 0.0 < hypergeometric_at_most(400, 20_000, 1_600, 40_000) < 1e-90


def test_binomial_edges():
    assert (binomial_pmf(0, 3, 0.0), binomial_pmf(3, 3, 1.0), binomial_pmf(4, 3, 0.5)) == (1.0, 1.0, 0.0)
    assert (binomial_at_least(0, 3, 0.5), binomial_at_least(4, 3, 0.5)) == (1.0, 0.0)
    assert (binomial_at_most(-1, 3, 0.5), binomial_at_most(3, 3, 0.5)) == (0.0, 1.0)
    assert upper_tail(quantile(0.975)) == pytest.approx(0.025, abs=1e-12)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.99))
def test_intervals_are_symmetric_hold_the_estimate_and_grow_with_confidence(counts: tuple[int, int], confidence: float):
    k, n = counts
    for interval in (wilson, clopper_pearson):
        found, mirrored = interval(k, n, confidence), interval(n - k, n, confidence)
        assert 0.0 <= found.low <= k / n <= found.high <= 1.0
        assert (found.low, found.high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low), abs=1e-9)
        wider = interval(k, n, (1 + confidence) / 2)
        assert wider.low <= found.low + 1e-12
        assert wider.high >= found.high - 1e-12
        assert found.high > found.low


def test_clopper_pearson_never_covers_less_than_it_says():
    n = 12
    found = [clopper_pearson(k, n) for k in range(n + 1)]
    for i in range(1, 100):
        p = i / 100
        covered = math.fsum(binomial_pmf(k, n, p) for k in range(n + 1) if found[k].low <= p <= found[k].high)
        assert covered >= 0.95


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.01, 0.99))
def test_the_score_test_is_wilsons_low_end(counts: tuple[int, int], bound: float):
    k, n = counts
    low = wilson(k, n, 0.9).low
    if abs(low - bound) > 1e-9:
        assert (score_p(k / n, n, bound) <= 0.05) == (low >= bound)


def test_score_test_at_the_ends():
    assert (score_p(0.5, 10, 1.0), score_p(0.5, 10, -0.1)) == (1.0, 0.0)
    assert (score_p(0.5, 10, 0.0), score_p(0.0, 10, 0.0)) == (0.0, 1.0)


def test_one_sample_a_problem_is_wilson():
    rows = [(1, 1)] * 7 + [(0, 1)] * 3
    found, plain = cluster_interval(rows), wilson(7, 10)
    assert (found.estimate, found.low, found.high) == pytest.approx((plain.estimate, plain.low, plain.high))


def test_samples_of_one_problem_are_no_independent_problems():
    same = cluster_interval([(4, 4)] * 10 + [(0, 4)] * 10)
    assert (same.low, same.high) == pytest.approx((wilson(10, 20).low, wilson(10, 20).high))
    mixed = cluster_interval([(2, 4)] * 20)
    assert (mixed.low, mixed.high) == pytest.approx((wilson(40, 80).low, wilson(40, 80).high))


def test_all_right_is_not_certain():
    found = cluster_interval([(4, 4)] * 25)
    assert found.low == pytest.approx(wilson(25, 25).low)
    assert found.high == 1.0


def test_problems_without_a_verdict_lower_n():
    assert cluster_interval([(1, 1), (0, 1), (0, 0)]) == cluster_interval([(1, 1), (0, 1)])
    with pytest.raises(ValueError, match="valid sample"):
        cluster_interval([(0, 0)])


@given(st.lists(st.integers(1, 5).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=40))
def test_effective_size_lies_between_problems_and_samples(rows: list[tuple[int, int]]):
    values = [s / n for s, n in rows]
    most = independent_size([n for _, n in rows])
    size = effective_size(values, most)
    assert len(rows) - 1e-9 <= size <= max(most, len(rows)) + 1e-9
    found = cluster_interval(rows)
    assert 0.0 <= found.low <= found.estimate <= found.high <= 1.0


def test_clustered_intervals_cover():
    rng = random.Random(5)
    covered = 0
    for _ in range(400):
        rows = []
        for _ in range(60):
            p = rng.betavariate(1.4, 0.6)
            rows.append((sum(rng.random() < p for _ in range(4)), 4))
        found = cluster_interval(rows)
        covered += found.low <= 0.7 <= found.high
    assert covered / 400 >= 0.93


@pytest.mark.parametrize(("k", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_impossible_counts_are_refused(k: int, n: int):
    with pytest.raises(ValueError, match="successes"):
        wilson(k, n)


def test_impossible_confidence_and_values_are_refused():
    with pytest.raises(ValueError, match="confidence"):
        wilson(1, 2, 1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        bounded_interval([1.5], 1)
