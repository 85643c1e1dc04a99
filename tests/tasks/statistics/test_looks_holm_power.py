import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.statistics import holm, looks, pass_metrics, power
from tasks.statistics.distributions import quantile

shares = st.floats(0.0, 1.0)


@given(st.lists(shares, min_size=1, max_size=8))
def test_holm_lies_between_plain_and_bonferroni(ps: list[float]):
    adjusted = holm.adjust(ps)
    for p, q in zip(ps, adjusted, strict=True):
        assert p <= q <= min(1.0, len(ps) * p) + 1e-12 or q <= 1.0
        assert q >= p
    assert sorted(adjusted) == [adjusted[i] for i in sorted(range(len(ps)), key=lambda i: ps[i])]


def test_holm_by_hand():
    assert holm.adjust([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm.levels([0.01, 0.04, 0.03], 0.06) == pytest.approx([0.02, 0.06, 0.03])
    assert holm.adjust([]) == []


@given(st.integers(1, 20), st.floats(0.001, 0.4), st.sampled_from(["pocock", "obrien_fleming"]))
def test_levels_of_all_looks_add_up_to_alpha(count: int, alpha: float, shape: looks.Shape):
    levels = [looks.spend(alpha, count, i, shape) for i in range(1, count + 1)]
    assert sum(levels) == pytest.approx(alpha)
    assert min(levels) > 0.0
    assert looks.spend(alpha, count, count + 1, shape) == 0.0


def test_one_look_spends_everything():
    assert looks.spend(0.05, 1, 1) == pytest.approx(0.05)


def test_a_look_before_the_first_is_refused():
    with pytest.raises(ValueError, match="look"):
        looks.spend(0.05, 3, 0)


def test_uncorrected_looks_pass_too_often_and_spent_ones_do_not():
    rng = random.Random(2)
    trials, count = 6000, 3
    plain, spent = quantile(0.95), [quantile(1 - looks.spend(0.05, count, i)) for i in (1, 2, 3)]
    wrong = [0, 0]
    for _ in range(trials):
        sums = list(itertools.accumulate(rng.gauss(0, 1) for _ in range(count)))
        z = [s / (i + 1) ** 0.5 for i, s in enumerate(sums)]
        wrong[0] += max(z) > plain
        wrong[1] += any(v > bar for v, bar in zip(z, spent, strict=True))
    assert 0.09 < wrong[0] / trials < 0.12
    assert wrong[1] / trials <= 0.055


@given(st.integers(10, 3000), st.floats(0.02, 0.9))
def test_detectable_difference_inverts_the_sample_size(problems: int, discordant: float):
    difference = power.detectable_difference(problems, discordant)
    if difference is None:
        needed = power.sample_size(discordant, discordant)
        assert needed is not None
        assert needed > problems
    else:
        needed = power.sample_size(difference, discordant)
        assert needed is not None
        assert needed <= problems
        assert (power.sample_size(difference * 0.9, discordant) or problems + 1) > problems


@given(st.integers(1, 500), st.floats(0.05, 0.99))
def test_successes_needed_agrees_with_problems_needed(problems: int, bound: float):
    needed = power.successes_needed(problems, bound)
    least = power.problems_needed(bound)
    assert least is not None
    assert (needed is None) == (problems < least)
    assert needed is None or bound * problems <= needed <= problems


def test_bounds_that_cannot_or_need_not_be_shown():
    assert power.problems_needed(1.0) is None
    assert power.problems_needed(0.0) == 1
    assert power.successes_needed(0, 0.5) is None
    with pytest.raises(ValueError, match="margin"):
        power.concordant_needed(0.0)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_metrics_count_subsets(nck: tuple[int, int, int]):
    n, c, k = nck
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_metrics.pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_metrics.pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_pass_metrics_refuse_impossible_counts():
    with pytest.raises(ValueError, match="expected"):
        pass_metrics.pass_at_k(2, 3, 1)
    assert pass_metrics.positive_problem_rate([(0, 0)]) is None
