"""Divergences: closed forms, slopes against autograd, bounds, ties, and distributions without mass."""

import math

import pytest
import torch

from tasks.learning.divergences import (
    Kind,
    Listed,
    confidence_weights,
    divergence,
    given_divergence,
    likeliest,
    listed_divergence,
    log_linear,
    mixture,
    rest_logprob,
)

DIRECTIONS = ("forward", "reverse", "jsd", "symmetric")
BETA = 0.3


def kind(direction):
    return Kind(direction, BETA if direction == "jsd" else 0.5, -30.0)


def by_hand(direction, s, t):
    """Return the divergence of two sets of logprobs, for autograd."""
    p, q = s.exp(), t.exp()
    forward, reverse = (q * (t - s)).sum(-1), (p * (s - t)).sum(-1)
    m = torch.log(BETA * q + (1 - BETA) * p)
    jsd = BETA * (q * (t - m)).sum(-1) + (1 - BETA) * (p * (s - m)).sum(-1)
    return {"forward": forward, "reverse": reverse, "jsd": jsd, "symmetric": (forward + reverse) / 2}[direction]


def drawn(seed, size=11):
    torch.manual_seed(seed)
    logits = torch.randn(6, size, dtype=torch.double, requires_grad=True)
    return logits, torch.randn(6, size, dtype=torch.double).mul(2).log_softmax(-1)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_value_and_slope_are_those_of_the_formula(direction):
    logits, teacher = drawn(0)
    expected = by_hand(direction, logits.log_softmax(-1), teacher)
    value, slope = divergence(logits.detach().log_softmax(-1), teacher, kind(direction))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, torch.autograd.grad(expected.sum(), logits)[0])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("by_policy", [True, False])
@pytest.mark.parametrize("rest", ["bucket", "none", "renormalize"])
def test_listed_value_and_slope_are_those_of_the_formula(direction, by_policy, rest):
    logits, teacher = drawn(1)
    policy = logits.log_softmax(-1)
    support = likeliest((policy if by_policy else teacher).detach(), 3)
    s, t = policy.gather(1, support), teacher.gather(1, support)
    if rest == "renormalize":
        s, t = s.log_softmax(-1), t.log_softmax(-1)
    if rest == "bucket":
        s, t = (torch.cat((x, torch.log1p(-x.exp().sum(-1, keepdim=True))), -1) for x in (s, t))
    expected = by_hand(direction, s, t)
    value, slope, shares = listed_divergence(policy.detach(), teacher, kind(direction), Listed(3, by_policy, rest))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, torch.autograd.grad(expected.sum(), logits)[0])
    assert bool((shares["overlap"] <= 1).all())
    assert bool((shares["teacher_mass"] < 1).all())


@pytest.mark.parametrize(("direction", "expected"), [("reverse", 1.3745), ("forward", 1.1967)])
def test_a_teacher_of_which_two_of_four_tokens_are_known(direction, expected):
    """KP-TEACH-04: the rest together has what is left; the plain sum, -0.2890, is no divergence."""
    logits = torch.tensor([[0.1, 0.1, 0.4, 0.4]], dtype=torch.double).log().requires_grad_()
    policy, support = logits.log_softmax(-1), torch.tensor([[0, 1]])
    known = torch.tensor([[0.6, 0.3]], dtype=torch.double).log()
    value, slope, shares = given_divergence(policy.detach(), support, known, Kind(direction, floor=-30.0), "bucket")
    assert value.item() == pytest.approx(expected, abs=5e-5)
    assert shares["teacher_mass"].item() == pytest.approx(0.9)
    listed = policy.gather(1, support)
    s, t = (torch.cat((x, torch.log1p(-x.exp().sum(-1, keepdim=True))), -1) for x in (listed, known))
    torch.testing.assert_close(slope, torch.autograd.grad(by_hand(direction, s, t).sum(), logits)[0])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("rest", ["bucket", "none", "renormalize"])
def test_a_given_list_is_compared_as_that_of_a_teacher_in_process(direction, rest):
    logits, teacher = drawn(7)
    policy = logits.detach().log_softmax(-1)
    support = likeliest(teacher, 4)
    given = given_divergence(policy, support, teacher.gather(1, support), kind(direction), rest)
    whole = listed_divergence(policy, teacher, kind(direction), Listed(4, by_policy=False, rest=rest))
    for a, b in zip((*given[:2], *given[2].values()), (*whole[:2], *whole[2].values()), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_bucket_for_the_rest_gives_a_lower_bound_that_grows_with_the_list(direction):
    logits, teacher = drawn(2)
    policy = logits.detach().log_softmax(-1)
    whole, _ = divergence(policy, teacher, kind(direction))
    shorter = torch.zeros_like(whole)
    for size in (1, 4, 8, 11):
        found, _, _ = listed_divergence(policy, teacher, kind(direction), Listed(size, by_policy=False))
        assert bool((found <= whole + 1e-6).all())
        assert bool((found >= -1e-9).all())
        assert bool((found >= shorter - 1e-6).all())
        shorter = found
    torch.testing.assert_close(shorter, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_equal_distributions_are_at_zero_without_a_slope(direction):
    logits, _ = drawn(3)
    policy = logits.detach().log_softmax(-1)
    value, slope = divergence(policy, policy, kind(direction))
    assert value.abs().max() < 1e-12
    assert slope.abs().max() < 1e-12


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_teacher_that_rules_tokens_out_gives_numbers(direction):
    logits, teacher = drawn(4)
    teacher = teacher.clone()
    teacher[:, :4] = -math.inf
    value, slope = divergence(logits.detach().log_softmax(-1), teacher.log_softmax(-1), kind(direction))
    assert bool(value.isfinite().all())
    assert bool(slope.isfinite().all())


def test_small_shares_of_the_mixture_come_near_the_two_kl():
    logits, teacher = drawn(5)
    policy = logits.detach().log_softmax(-1)
    forward, reverse = (divergence(policy, teacher, Kind(d))[0] for d in ("forward", "reverse"))
    for beta, expected in ((1e-6, forward), (1 - 1e-6, reverse)):
        found = divergence(policy, teacher, Kind("jsd", beta))[0]
        torch.testing.assert_close(found / min(beta, 1 - beta), expected, atol=1e-3, rtol=1e-3)


def test_of_equal_tokens_the_lower_ids_are_listed():
    logprobs = torch.tensor([[0.1, 0.3, 0.3, 0.3], [0.4, 0.2, 0.2, 0.2]]).log()
    assert likeliest(logprobs, 2).tolist() == [[1, 2], [0, 1]]


def test_the_rest_of_nothing_has_a_logprob():
    assert bool(rest_logprob(torch.tensor([[0.0, -math.inf]])).isfinite().all())


def test_one_teacher_is_its_own_mixture_and_product():
    _, teacher = drawn(6)
    both = torch.stack([teacher, teacher.roll(1, -1)])
    alone = torch.tensor([[1.0] * 6, [0.0] * 6], dtype=torch.double)
    torch.testing.assert_close(mixture(both, alone), teacher)
    product, log_sum = log_linear(both, alone)
    torch.testing.assert_close(product, teacher)
    assert log_sum.abs().max() < 1e-12
    half = torch.full((2, 6), 0.5, dtype=torch.double)
    assert bool((log_linear(both, half)[1] < 0).all())
    torch.testing.assert_close(mixture(both, half).exp().sum(-1), torch.ones(6, dtype=torch.double))


def test_the_surer_teacher_weighs_more_and_none_falls_back():
    sure, flat = torch.tensor([[0.98, 0.01, 0.01]]).log(), torch.full((1, 3), 1 / 3).log()
    half = torch.full((2, 1), 0.5)
    weights = confidence_weights(torch.stack([sure, flat]), half)
    assert weights[0, 0] > 0.99
    torch.testing.assert_close(
        confidence_weights(torch.stack([flat.clamp(max=-1.0986123), flat]), half).sum(0),
        torch.ones(1),
        atol=1e-4,
        rtol=0,
    )
