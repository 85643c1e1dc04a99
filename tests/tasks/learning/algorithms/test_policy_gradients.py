"""What holds for every policy gradient: masks, padding, splits, corrections, KL and entropy."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specs.algorithms import POLICY_GRADIENTS, policy_gradient_from
from specs.group_relative import CISPO, DAPO, GSPO, REINFORCE, RLOO, Resample, SoftOverlong
from specs.grpo import GRPO
from specs.policy_gradient import Correction
from specs.value_based import SAO, TurnPPO, ValueBased
from tasks.learning.algorithms import loss_for, policy_gradient_for
from tasks.learning.grouping import Rewarded
from tasks.learning.surrogate import kl_k2, kl_k3, kl_k3_plus
from tasks.tensors import token_weights, turn_numbers, turn_sums
from tests.tasks.learning.algorithms.gradients import (
    ADVANTAGES,
    ALL,
    LOGPROBS,
    MASK,
    OLD,
    batch,
    tensor,
    value_and_gradient,
)

every = pytest.mark.parametrize("spec", ALL, ids=lambda s: s.type)
compared = pytest.mark.parametrize("spec", [s for s in ALL if not isinstance(s, ValueBased)], ids=lambda s: s.type)
numbers = st.floats(-4, -0.0078125, width=16)


def test_the_list_of_types_is_the_union() -> None:
    assert [s.type for s in ALL] == list(POLICY_GRADIENTS)
    assert [policy_gradient_from(s.model_dump(mode="json")) for s in ALL] == ALL


@st.composite
def grids(draw):
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def grid():
        return tensor([[draw(numbers) for _ in range(columns)] for _ in range(rows)])

    mask = torch.tensor([[draw(st.booleans()) for _ in range(columns)] for _ in range(rows)])
    return grid(), grid(), mask, [draw(numbers) + 2 for _ in range(rows)]


@every
@given(made=grids(), mean=st.sampled_from(["token", "sequence", "sequence_sum", 7]))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_what_is_masked_or_padded_changes_nothing(spec, made, mean):
    logprobs, old, mask, advantages = made
    loss = loss_for(spec)
    plain = loss(batch(logprobs, old, mask, advantages, mean)).loss
    spoiled, broken = torch.where(mask, logprobs, -torch.inf).requires_grad_(), torch.where(mask, old, torch.nan)
    hidden = loss(batch(spoiled, broken, mask, advantages, mean)).loss
    torch.testing.assert_close(hidden, plain)
    assert torch.autograd.grad(hidden, spoiled)[0].isfinite().all()

    def pad(grid, value):
        return torch.nn.functional.pad(grid, (0, 2), value=value)

    wider = loss(batch(pad(logprobs, -3.0), pad(old, -1.0), pad(mask, False), advantages, mean)).loss
    torch.testing.assert_close(wider, plain)


@every
@given(made=grids())
@settings(max_examples=10, deadline=None, derandomize=True)
def test_any_split_of_the_rows_adds_up(spec, made):
    logprobs, old, mask, advantages = made
    loss, whole = loss_for(spec), batch(logprobs, old, mask, advantages, spec_mean(spec))
    parts = []
    for b in range(len(logprobs)):
        part = batch(logprobs[b : b + 1], old[b : b + 1], mask[b : b + 1], advantages[b : b + 1])
        part.weights_BT = whole.weights_BT[b : b + 1]
        parts.append(loss(part).loss)
    torch.testing.assert_close(torch.stack(parts).sum(), loss(whole).loss)


@every
@given(made=grids(), chance=st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_rows_may_come_in_any_order(spec, made, chance):
    logprobs, old, mask, advantages = made
    order = torch.tensor(chance.sample(range(len(logprobs)), len(logprobs)))
    given_in, loss = logprobs.clone().requires_grad_(), loss_for(spec)
    plain = loss(batch(given_in, old, mask, advantages, spec_mean(spec)))
    other = loss(batch(given_in[order], old[order], mask[order], tensor(advantages)[order], spec_mean(spec)))
    torch.testing.assert_close(other.loss, plain.loss)
    torch.testing.assert_close(other.metrics, plain.metrics)
    torch.testing.assert_close(*(torch.autograd.grad(found.loss, given_in)[0] for found in (plain, other)))


BOUNDS = {
    "clip_low": 1 - 1e-12, "clip_high": 1e9, "ratio_low": 0.0, "ratio_high": 1e9, "drift_low": 1.0, "drift_high": 1e9,
}  # fmt: skip
bounded = pytest.mark.parametrize(
    "spec", [s for s in ALL if BOUNDS.keys() & type(s).model_fields], ids=lambda s: s.type
)


def unclipped(spec, logprobs, old, mask, weights, advantages):
    """Return minus the weighted sum of ratio x advantage, the ratio being the algorithm's own."""
    d = torch.where(mask, logprobs - old, 0.0)
    if isinstance(spec, GSPO):
        d = d.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    if isinstance(spec, TurnPPO):
        turns = turn_numbers(mask)
        d = turn_sums(d, turns) / turn_sums(mask.double(), turns).clamp(min=1)
    if isinstance(spec, CISPO | SAO):  # the ratio is a constant weight
        return -(weights * d.detach().exp() * advantages * torch.where(mask, logprobs, 0.0)).sum()
    return -(weights * d.exp() * advantages).sum()


@bounded
@given(made=grids())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_bounds_that_are_never_reached_are_none(spec, made):
    logprobs, old, mask, advantages = made
    wide = spec.model_copy(update={n: v for n, v in BOUNDS.items() if n in type(spec).model_fields})
    given_in = logprobs.clone().requires_grad_()
    whole = batch(given_in, old, mask, advantages, spec_mean(spec))
    found = loss_for(wide)(whole)
    plain = unclipped(spec, given_in, old, mask, whole.weights_BT, tensor(advantages)[:, None])
    torch.testing.assert_close(found.loss, plain)
    assert found.metrics["clip_fraction"] == 0
    torch.testing.assert_close(*(torch.autograd.grad(loss, given_in)[0] for loss in (found.loss, plain)))


def spec_mean(spec):
    return 5 if spec.aggregation == "constant" else spec.aggregation


@every
def test_on_policy_the_gradient_is_the_policy_gradient(spec):
    """Where the policy has not moved, every algorithm has the gradient of minus A log pi (GSPO: spread evenly)."""
    logprobs = tensor(OLD).requires_grad_()
    output = loss_for(spec)(batch(logprobs, OLD, MASK, ADVANTAGES, "sequence"))
    (gradient,) = torch.autograd.grad(output.loss, logprobs)
    weights = token_weights(torch.tensor(MASK), "sequence").double()
    torch.testing.assert_close(gradient, -weights * tensor(ADVANTAGES)[:, None])


@every
def test_advantages_ignore_what_was_not_given(spec):
    advantages = policy_gradient_for(spec)[1]
    groups, tokens = ["g"] * 4, [3, 5, 2, 4]
    found = advantages(Rewarded([1.0, None, 0.0, 1.0], groups, tokens))
    assert found == advantages(Rewarded([1.0, math.nan, 0.0, 1.0], groups, tokens))
    assert found[1] is None
    without = advantages(Rewarded([1.0, 0.0, 1.0], ["g"] * 3, [3, 2, 4]))
    assert [a for a in found if a is not None] == without
    assert advantages(Rewarded([], [], [])) == []
    assert advantages(Rewarded([None, math.nan], ["g"] * 2, [1, 1])) == [None, None]


@compared
def test_groups_without_variance_or_with_one_reward_give_nothing(spec):
    advantages = policy_gradient_for(spec)[1]
    assert advantages(Rewarded([0.5] * 3, ["a"] * 3, [1, 2, 3])) == [0.0] * 3
    assert advantages(Rewarded([1.0, None, None], ["a"] * 3, [1, 2, 3])) == [0.0, None, None]


@compared
@given(rewards=st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=8), shift=st.floats(-3, 3, width=16))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_a_shift_of_all_rewards_changes_no_advantage(spec, rewards, shift):
    advantages = policy_gradient_for(spec)[1]
    groups, tokens = ["g"] * len(rewards), [4] * len(rewards)
    found = advantages(Rewarded(rewards, groups, tokens))
    assert sum(a or 0.0 for a in found) == pytest.approx(0, abs=1e-6)
    shifted = advantages(Rewarded([r + shift for r in rewards], groups, tokens))
    assert shifted == pytest.approx(found, abs=1e-6)


@every
def test_corrections_weigh_the_policys_term_alone(spec):
    spec = spec.model_copy(update={"kl_coef": 0.5, "kl": "k2"})
    reference = tensor(LOGPROBS) - 0.3
    loss = policy_gradient_for(spec)[0]
    ones, twos = torch.ones(2, 3, dtype=torch.float64), torch.full((2, 3), 2.0, dtype=torch.float64)

    def found(**more):
        return loss(batch(tensor(LOGPROBS), OLD, MASK, ADVANTAGES, reference_logprobs_BT=reference, **more)).loss

    plain, doubled = found(corrections_BT=ones), found(corrections_BT=twos)
    assert plain == found()
    assert (doubled - plain).item() == pytest.approx(plain.item() - 0.5 * 0.3**2 / 2, abs=1e-9)


@every
def test_entropy_is_taken_off_the_loss(spec):
    more = spec.model_copy(update={"entropy_coef": 0.1})
    entropy = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, math.nan]])
    made = batch(tensor(LOGPROBS), OLD, MASK, ADVANTAGES, entropy_BT=entropy)
    difference = loss_for(more)(made).loss - loss_for(spec)(made).loss
    assert difference.item() == pytest.approx(-0.1 * 3.0)


def test_kl_estimators_by_placement():
    logprobs, reference = tensor([[-1.0, -0.1]]).requires_grad_(), tensor([[-2.0, -2.1]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    plus = kl_k3_plus(logprobs, reference, mask)
    torch.testing.assert_close(plus, kl_k3(logprobs, reference, mask))
    (gradient,) = torch.autograd.grad(plus.sum(), logprobs)
    torch.testing.assert_close(gradient, torch.autograd.grad(kl_k2(logprobs, reference, mask).sum(), logprobs)[0])
    torch.testing.assert_close(gradient, tensor([[1.0, 2.0]]))


@pytest.mark.parametrize(("kl", "at"), [("k2", 0.045), ("k3", math.exp(-0.3) - 0.7), ("k3_plus", math.exp(-0.3) - 0.7)])
def test_kl_in_the_loss_is_added_with_its_coefficient(kl, at):
    reference = tensor(LOGPROBS) - 0.3
    without = value_and_gradient(loss_of(GRPO(type="grpo")), GRPO(type="grpo"))[0]
    spec = GRPO(type="grpo", kl_coef=0.5, kl=kl)
    found, _, metrics = value_and_gradient(loss_of(spec), spec, reference_logprobs_BT=reference)
    assert found - without == pytest.approx(0.5 * at, abs=1e-9)
    assert metrics["reference_kl_k3"] == pytest.approx(math.exp(-0.3) - 0.7)


def loss_of(spec):
    return lambda made, _: loss_for(spec)(made)


def test_k1_is_taken_off_the_advantages():
    spec = RLOO(type="rloo", kl_coef=0.5)
    reference = tensor(OLD) - 0.4
    made = batch(tensor(LOGPROBS), OLD, MASK, ADVANTAGES, reference_logprobs_BT=reference)
    lower = batch(tensor(LOGPROBS), OLD, MASK, [a - 0.2 for a in ADVANTAGES])
    torch.testing.assert_close(loss_for(spec)(made).loss, loss_for(RLOO(type="rloo"))(lower).loss)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: GRPO(type="grpo", group_size=1),
            "one alone has an advantage of 0; needs at least 2 samples of a problem",
        ),
        (lambda: policy_gradient_from({"type": "gigpo", "group_size": 1}), "compared with one another"),
        (lambda: GRPO(type="grpo", group_size=0), "greater than or equal to 2"),
        (lambda: RLOO(type="rloo", updates_per_batch=2), "needs an importance ratio"),
        (lambda: REINFORCE(type="reinforce", group_size=1, baseline="second_best"), "compares within a group"),
        (lambda: REINFORCE(type="reinforce", decay=0.5), "decay is not read"),
        (lambda: GRPO(type="grpo", token_budget=9), "token_budget is not read"),
        (lambda: DAPO(type="dapo", overlong=SoftOverlong(limit=9, buffer=2)), "write truncated: score"),
        (lambda: SoftOverlong(limit=9, buffer=10), "at most limit"),
        (lambda: Resample(max_rounds=0), "greater than or equal to 1"),
        (lambda: Correction(band=(2.0, 0.5)), "the lower ratio first"),
        (lambda: policy_gradient_from({"type": "cispo", "ratio_low": 6.0}), "at most ratio_high"),
        (lambda: policy_gradient_from({"type": "ppo", "critic": {"warmup_steps": 20}}), "expected less than steps"),
        (lambda: policy_gradient_from({"type": "ppo", "correction": {"reject_drifted": 1.0}}), "by token"),
        (lambda: policy_gradient_from({"type": "sao", "updates_per_batch": 2}), "needs an importance ratio"),
        (lambda: policy_gradient_from({"type": "g2po", "discount": 1.5}), "less than or equal to 1"),
        (lambda: policy_gradient_from({"type": "sao", "correction": {}}), "applied twice"),
        (lambda: policy_gradient_from({"type": "sao", "gae_lambda": 0.9}), "gae_lambda is not read"),
        (lambda: policy_gradient_from({"type": "ppo", "gae_lambda": 0.9, "length_adaptive": 2.0}), "is not read"),
        (lambda: GRPO(type="grpo", scale_rewards="none", std_floor=0.1), "std_floor is not read"),
        (lambda: policy_gradient_from({"type": "gigpo", "std_floor": 0.1}), "std_floor is not read"),
        (lambda: policy_gradient_from({"type": "g2po", "std_floor": 0.1}), "std_floor is not read"),
        (lambda: GRPO(type="grpo", kl="k3"), "kl is not read with kl_coef: 0"),
        (lambda: RLOO(type="rloo", kl="k2"), "kl is not read with kl_coef: 0"),
        (lambda: policy_gradient_from({"type": "ppo", "kl": "k1_in_reward", "kl_coef": 0.1}), "whiten: false"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make, text):
    with pytest.raises(ValidationError, match=text):
        make()


def test_settings_that_another_one_needs_are_taken():
    sao = policy_gradient_from({"type": "sao", "length_adaptive": None, "gae_lambda": 0.9})
    ppo = policy_gradient_from({"type": "ppo", "kl": "k1_in_reward", "kl_coef": 0.1, "whiten": False})
    assert [policy_gradient_from(s.model_dump(mode="json")) for s in (sao, ppo)] == [sao, ppo]
