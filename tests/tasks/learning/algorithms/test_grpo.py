import pytest
import torch

from specs.grpo import GRPO
from tasks.learning.algorithms import grpo
from tasks.learning.grouping import Rewarded, count_groups
from tests.tasks.learning.algorithms.gradients import ADVANTAGES, LOGPROBS, MASK, OLD, batch, tensor, value_and_gradient

SPEC = GRPO(type="grpo")
REWARDED = Rewarded([1, 0, 0, 1, 0.5, 0.5, 0.5, 2.0], ["a", "a", "a", "a", "b", "b", "b", "c"])


def test_advantages_by_scale():
    signs = [1, -1, -1, 1]
    for scale, size in (("group_std", 0.866024), ("group_population_std", 0.999998), ("none", 0.5)):
        found = grpo.advantages(REWARDED, SPEC.model_copy(update={"scale_rewards": scale}))
        assert found == pytest.approx([*(s * size for s in signs), 0, 0, 0, 0], abs=2e-6)
    by_batch = grpo.advantages(
        Rewarded([1.0, 0.0, 3.0, 1.0], ["a", "a", "b", "b"]), GRPO(type="grpo", scale_rewards="batch_std")
    )
    assert by_batch == pytest.approx([0.397360, -0.397360, 0.794719, -0.794719], abs=2e-6)


def test_groups_are_counted():
    counts = count_groups(REWARDED)
    assert (counts.groups, counts.varied, counts.flat, counts.too_few, counts.missing) == (3, 1, 1, 1, 0)


def test_a_group_that_shrank_to_one_gives_nothing():
    shrunk = Rewarded([1.0, None, None, None], ["g"] * 4)
    assert grpo.advantages(shrunk, SPEC) == [0.0, None, None, None]
    assert (count_groups(shrunk).too_few, count_groups(shrunk).missing) == (1, 3)


def test_worked_example_of_the_clipped_loss():
    value, gradient, metrics = value_and_gradient(grpo.loss, SPEC)
    assert value == pytest.approx(-0.088148, abs=2e-6)
    assert metrics["clip_fraction"] == pytest.approx(0.2)
    assert gradient[0] == pytest.approx([0.0, -0.134064, -0.2], abs=2e-6)
    assert gradient[1] == pytest.approx([0.36693, 0.134986, 0.0], abs=2e-6)
    assert value_and_gradient(grpo.loss, SPEC, "sequence")[0] == pytest.approx(0.135674, abs=2e-6)


def test_dual_clip_bounds_the_loss_and_stops_the_gradient():
    value, gradient, _ = value_and_gradient(grpo.loss, GRPO(type="grpo", dual_clip=3.0))
    assert value == pytest.approx(-0.155078, abs=2e-6)
    assert gradient[1] == pytest.approx([0.0, 0.134986, 0.0], abs=2e-6)


def test_a_wide_clip_is_none():
    wide = GRPO(type="grpo", clip_low=1 - 1e-12, clip_high=1e9)
    ratio = (tensor(LOGPROBS) - tensor(OLD)).exp()
    weights = torch.tensor(MASK) / 5
    expected = -(weights * ratio * tensor(ADVANTAGES)[:, None]).sum().item()
    assert value_and_gradient(grpo.loss, wide)[0] == pytest.approx(expected)


def test_old_logprobs_go_before_the_samplers():
    given_old = batch(tensor(LOGPROBS), [[0.0] * 3] * 2, MASK, ADVANTAGES)
    given_old.old_logprobs_BT = tensor(OLD)
    assert grpo.loss(given_old, SPEC).loss.item() == pytest.approx(-0.088148, abs=2e-6)
