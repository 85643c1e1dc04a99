import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.statistics.paired import (
    EXACT_UP_TO,
    difference_p,
    lower_bound,
    mcnemar_exact,
    mcnemar_mid_p,
    pairs,
    superiority_p,
    tango_interval,
    tango_statistic,
    upper_bound,
)

counts = st.integers(1, 25).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, n - b), st.just(n)))
)


@given(st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_equals_the_sum_over_coin_tosses(b: int, c: int):
    d = b + c
    tail = sum(math.comb(d, i) for i in range(min(b, c) + 1)) / 2**d
    assert mcnemar_exact(b, c) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar_exact(b, c) == mcnemar_exact(c, b)
    assert mcnemar_exact(b, c, "better") == pytest.approx(sum(math.comb(d, i) for i in range(b, d + 1)) / 2**d)
    assert mcnemar_exact(b, c, "worse") == mcnemar_exact(c, b, "better")
    assert mcnemar_mid_p(b, c) <= mcnemar_exact(b, c)


def test_nothing_differs():
    assert mcnemar_exact(0, 0) == 1.0
    assert superiority_p(0, 0, 50) == 1.0


def brute_p(b: int, c: int, n: int, margin: float) -> float:
    """The same test by listing every outcome and scanning the nuisance share densely."""
    seen = tango_statistic(b, c, n, margin) - 1e-9
    extreme = [
        (i, j)
        for i in range(n + 1)
        for j in range(n + 1 - i)
        if tango_statistic(i, j, n, margin) >= seen
    ]  # fmt: skip
    best = 0.0
    for step in range(401):
        broken = max(0.0, -margin) + ((1 - margin) / 2 - max(0.0, -margin)) * step / 400
        solved = max(0.0, broken + margin)
        same = max(0.0, 1 - solved - broken)
        best = max(
            best,
            math.fsum(
                math.comb(n, i) * math.comb(n - i, j) * solved**i * broken**j * same ** (n - i - j) for i, j in extreme
            ),
        )
    return min(1.0, best)


@pytest.mark.parametrize(
    ("b", "c", "n", "margin"),
    [(0, 0, 12, -0.2), (2, 1, 12, -0.2), (5, 1, 14, 0.05), (1, 4, 10, -0.3), (6, 0, 9, 0.1), (3, 3, 15, -0.1)],
)
def test_difference_p_equals_brute_force(b: int, c: int, n: int, margin: float):
    assert difference_p(b, c, n, margin) == pytest.approx(brute_p(b, c, n, margin), abs=2e-4)


@pytest.mark.parametrize("margin", [-0.2, -0.05, 0.1])
def test_difference_test_keeps_its_level(margin: float):
    n = 12
    rejected = {(b, c) for b in range(n + 1) for c in range(n + 1 - b) if difference_p(b, c, n, margin) <= 0.05}
    for step in range(21):
        broken = max(0.0, -margin) + ((1 - margin) / 2 - max(0.0, -margin)) * step / 20
        solved, same = max(0.0, broken + margin), max(0.0, 1 - 2 * broken - margin)
        size = math.fsum(
            math.comb(n, b) * math.comb(n - b, c) * solved**b * broken**c * same ** (n - b - c) for b, c in rejected
        )
        assert size <= 0.0502


@settings(max_examples=25, deadline=None)
@given(counts)
def test_bounds_hold_the_estimate_and_mirror(count: tuple[int, int, int]):
    b, c, n = count
    low, high = lower_bound(b, c, n), upper_bound(b, c, n)
    assert -1.0 <= low <= (b - c) / n <= high <= 1.0
    assert low < high
    assert upper_bound(c, b, n) == -low
    score = tango_interval(b, c, n, 0.9)
    assert score.low <= (b - c) / n + 1e-9
    if n >= 10:
        assert (score.low, score.high) == pytest.approx((low, high), abs=0.1)


@settings(max_examples=25, deadline=None)
@given(counts, st.floats(-0.5, 0.4), st.floats(0.01, 0.3))
def test_what_is_shown_at_a_margin_is_shown_at_a_wider_one(count: tuple[int, int, int], margin: float, more: float):
    if difference_p(*count, margin) <= 0.05:
        assert difference_p(*count, margin - more) <= 0.0505


def test_many_pairs_agree_with_the_score_test():
    exact = difference_p(90, 70, EXACT_UP_TO, -0.005)
    score = difference_p(90, 70, EXACT_UP_TO + 1, -0.005)
    assert exact == pytest.approx(score, abs=2e-3)


def test_a_tiny_set_shows_nothing():
    assert lower_bound(0, 0, 5) == pytest.approx(-0.45, abs=0.01)


def test_pairs_of_single_samples_are_the_plain_counts():
    found = pairs([1.0] * 3 + [-1.0] * 2 + [0.0] * 5, 10)
    assert (found.solved, found.broken, found.n) == pytest.approx((3, 2, 10))
    assert found.against_better() == found.against_worse() == (3, 2, 10)


def test_pairs_of_several_samples_round_against_the_claim():
    rng = random.Random(1)
    found = pairs([rng.choice([-0.5, -0.25, 0.0, 0.25, 0.5]) for _ in range(40)], 160)
    assert 40 <= found.n <= 160
    better, worse = found.against_better(), found.against_worse()
    assert better[0] <= found.solved <= worse[0]
    assert worse[1] <= found.broken <= better[1]


def test_equal_samples_without_spread_count_at_most_as_independent():
    assert pairs([0.25] * 10, 40).n == 40
    assert pairs([0.0] * 10, 40).n == 10


@pytest.mark.parametrize("bad", [(3, 3, 5, 0.0), (-1, 0, 5, 0.0), (0, 0, 0, 0.0), (0, 0, 5, 1.0)])
def test_impossible_counts_are_refused(bad: tuple[int, int, int, float]):
    with pytest.raises(ValueError, match="expected"):
        difference_p(*bad)
