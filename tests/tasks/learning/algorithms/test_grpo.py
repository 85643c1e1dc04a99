import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.algorithms import GRPO
from tasks.learning.algorithms import grpo
from tasks.learning.algorithms.grpo import advantages, kl_k3
from tasks.learning.learner import Aggregation
from tasks.tensors import Batch, token_weights

SPEC = GRPO(type="grpo")
LOGPROBS = [[-0.7, -2.4, -0.5], [-0.2, -0.4, -3.0]]
OLD = [[-1.0, -2.0, -0.5], [-1.5, -0.7, -3.0]]
MASK = [[1, 1, 1], [1, 1, 0]]
ADVANTAGES = torch.tensor([[1.0] * 3, [-0.5] * 3])


def batch(logprobs, old, mask, advantage, aggregation: Aggregation = "token", reference=None):
    return Batch(
        logprobs,
        token_weights(torch.as_tensor(mask), aggregation),
        sampler_logprobs_BT=torch.as_tensor(old),
        advantages_BT=advantage,
        reference_logprobs_BT=reference,
    )


def test_worked_example_of_advantages():
    rewards = [1, 0, 0, 1, 0.5, 0.5, 0.5, 2.0]
    groups = ["a", "a", "a", "a", "b", "b", "b", "c"]
    scaled, counts = advantages(rewards, groups, "group_std")
    assert scaled == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024, 0, 0, 0, 0], abs=2e-6)
    assert (counts.groups, counts.varied, counts.flat, counts.too_few) == (3, 1, 1, 1)
    centred, _ = advantages(rewards, groups, "none")
    assert centred == pytest.approx([0.5, -0.5, -0.5, 0.5, 0, 0, 0, 0])


def test_a_reward_that_was_not_given_takes_no_part():
    values, counts = advantages([1.0, None, 0.0, 1.0], ["g"] * 4)
    assert values[1] is None
    assert [v for v in values if v is not None] == pytest.approx([0.57735, -1.154699, 0.57735], abs=2e-6)
    assert counts.missing == 1
    again, _ = advantages([1.0, math.nan, 0.0, 1.0], ["g"] * 4)
    assert again == values


def test_a_group_that_shrank_to_one_gives_nothing():
    values, counts = advantages([1.0, None, None, None], ["g"] * 4)
    assert values == [0.0, None, None, None]
    assert counts.too_few == 1


@given(
    rewards=st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=9),
    shift=st.floats(-3, 3, width=16),
    scale=st.sampled_from(["group_std", "none"]),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_advantages_sum_to_zero_and_ignore_a_shift(rewards, shift, scale):
    values, _ = advantages(rewards, ["g"] * len(rewards), scale)
    shifted, _ = advantages([r + shift for r in rewards], ["g"] * len(rewards), scale)
    assert sum(v or 0.0 for v in values) == pytest.approx(0, abs=1e-6)
    assert shifted == pytest.approx(values, abs=1e-6)


def test_worked_example_of_the_clipped_loss():
    logprobs = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    output = grpo.loss(batch(logprobs, OLD, MASK, ADVANTAGES), SPEC)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-0.088148, abs=2e-6)
    assert output.metrics["clip_fraction"].item() == pytest.approx(0.2)
    expected = torch.tensor([[0.0, -0.134064, -0.2], [0.36693, 0.134986, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(logprobs.grad, expected, atol=2e-6, rtol=0)
    by_sequence = grpo.loss(batch(logprobs, OLD, MASK, ADVANTAGES, "sequence"), SPEC)
    assert by_sequence.loss.item() == pytest.approx(0.135674, abs=2e-6)


def test_worked_example_of_k3():
    logprobs = torch.tensor([[-1.0, -0.5, -2.0, -0.1]], dtype=torch.float64)
    reference = torch.tensor([[-1.2, -0.5, -1.0, -2.1]], dtype=torch.float64)
    values = kl_k3(logprobs, reference, torch.ones(1, 4, dtype=torch.bool))
    assert values[0].tolist() == pytest.approx([0.018731, 0.0, 0.718282, 1.135335], abs=2e-6)


def test_kl_is_added_with_its_coefficient():
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    reference = logprobs.detach() - 0.3
    spec = GRPO(type="grpo", kl_coef=0.5)
    with_kl = grpo.loss(batch(logprobs, OLD, MASK, ADVANTAGES, reference=reference), spec)
    without = grpo.loss(batch(logprobs, OLD, MASK, ADVANTAGES), SPEC)
    k3 = math.exp(-0.3) - 1 + 0.3
    assert with_kl.loss.item() - without.loss.item() == pytest.approx(0.5 * k3, abs=1e-6)
    assert with_kl.metrics["reference_kl_k3"].item() == pytest.approx(k3, abs=1e-6)


def test_old_logprobs_go_before_the_samplers():
    logprobs = torch.tensor(LOGPROBS)
    given_old = batch(logprobs, [[0.0] * 3] * 2, MASK, ADVANTAGES)
    given_old.old_logprobs_BT = torch.tensor(OLD)
    assert grpo.loss(given_old, SPEC).loss.item() == pytest.approx(-0.088148, abs=2e-6)


numbers = st.floats(-4, -0.0078125, width=16)


@given(data=st.data(), rows=st.integers(1, 3), columns=st.integers(1, 4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_masked_columns_padding_and_a_wide_clip(data, rows, columns):
    def grid():
        return torch.tensor([[data.draw(numbers) for _ in range(columns)] for _ in range(rows)], dtype=torch.float64)

    logprobs, old, advantage = grid(), grid(), grid() + 2
    mask = torch.tensor([[data.draw(st.booleans()) for _ in range(columns)] for _ in range(rows)])
    plain = grpo.loss(batch(logprobs, old, mask, advantage), SPEC).loss

    spoiled = torch.where(mask, logprobs, float("-inf"))
    assert torch.equal(grpo.loss(batch(spoiled, old, mask, advantage), SPEC).loss, plain)

    def pad(grid_BT, value):
        return torch.nn.functional.pad(grid_BT, (0, 2), value=value)

    padded = batch(pad(logprobs, -3.0), pad(old, -1.0), pad(mask, False), pad(advantage, 7.0))
    torch.testing.assert_close(grpo.loss(padded, SPEC).loss, plain)

    wide = GRPO(type="grpo", clip_low=1 - 1e-12, clip_high=1e9)
    weights = token_weights(mask, "token")
    unclipped = -(weights * torch.where(mask, (logprobs - old).exp() * advantage, 0.0)).sum()
    torch.testing.assert_close(grpo.loss(batch(logprobs, old, mask, advantage), wide).loss, unclipped)
