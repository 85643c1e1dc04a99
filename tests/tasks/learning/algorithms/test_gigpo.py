import pytest

from specs.turn_credit import GiGPO
from tasks.learning.algorithms import gigpo
from tasks.learning.grouping import Rewarded, Walk, normalised
from tests.tasks.learning.algorithms.gradients import LOGPROBS, MASK, OLD, batch, tensor, value_and_gradient

SPEC = GiGPO(type="gigpo")


def walk(*anchors, success=True, rewards=()):
    return Walk(anchors, [True] * len(anchors), success, rewards)


def test_turns_are_compared_with_others_from_the_same_state():
    walks = [walk("s", "a"), walk("s", "b", "c"), walk("s", "a", success=False)]
    rewarded = Rewarded([1.0, 1.0, 0.0], ["g"] * 3, walks=walks)
    made = gigpo.turn_advantages(rewarded, SPEC)
    first = [0.95 * 1.0, 0.95**2, 0.0]
    mean = sum(first) / 3
    assert made[0] == pytest.approx([1 / 3 + first[0] - mean, 1 / 3 + 0.5])
    assert made[1] == pytest.approx([1 / 3 + first[1] - mean, 1 / 3, 1 / 3])
    assert made[2] == pytest.approx([-2 / 3 + first[2] - mean, -2 / 3 - 0.5])


def test_a_turn_may_have_what_it_earned_by_itself():
    walks = [walk("s", "a", "b", rewards=[0.2, 0.0, -0.1]), walk("s", "a", success=False, rewards=[0.0, 0.0])]
    rewarded = Rewarded([1.1, 0.0], ["g"] * 2, walks=walks)
    own = GiGPO(type="gigpo", discount=0.5, turn_rewards=True)
    last = 1.1 - 0.2
    assert gigpo.turn_returns(rewarded, 0, own) == pytest.approx([0.2 + 0.25 * last, 0.5 * last, last])
    assert gigpo.turn_returns(rewarded, 1, own) == [0.0, 0.0]
    whole = GiGPO(type="gigpo", discount=0.5)
    assert gigpo.turn_returns(rewarded, 0, whole) == pytest.approx([0.275, 0.55, 1.1])
    assert gigpo.advantages(rewarded, own) == gigpo.advantages(rewarded, whole)


def test_groups_do_not_mix_and_missing_rewards_take_no_part():
    walks = [walk("s")] * 4
    rewarded = Rewarded([1.0, None, 0.0, 0.0], ["a", "a", "a", "b"], walks=walks)
    assert gigpo.turn_advantages(rewarded, SPEC) == [[1.0], None, [-1.0], [0.0]]


def test_equal_rewards_of_unequal_length_still_compare_turns():
    rewarded = Rewarded([1.0, 1.0], ["g"] * 2, walks=[walk("s"), walk("s", "a")])
    made = gigpo.turn_advantages(rewarded, SPEC)
    assert [v for turns in made for v in turns or []] == pytest.approx([0.025, -0.025, 0.0])


def test_rounding_is_no_difference_between_turns():
    spec = GiGPO(type="gigpo", scale_rewards="group_std", discount=0.95)
    rewarded = Rewarded([0.1 + 0.2, 0.3, 1.0], ["g"] * 3, walks=[walk("s", "a"), walk("s", "a"), walk("s", "b")])
    own = gigpo.turns_own(rewarded, spec)
    assert (own[0, 1], own[1, 1]) == (0.0, 0.0)
    assert normalised([0.1 + 0.2, 0.3], None) == normalised([0.1 + 0.2, 0.3], 1e-18) == [0.0, 0.0]


def test_value_and_gradient_with_advantages_by_token():
    by_token = tensor([[1.0, -1.0, 0.5], [-0.5, -0.5, 0.0]])
    logprobs = tensor(LOGPROBS)
    made = gigpo.loss(batch(logprobs, OLD, MASK, by_token), SPEC).loss.item()
    ratios = (logprobs - tensor(OLD)).exp()
    expected = [-1.28, 0.8, -0.5 * ratios[0, 2], 0.5 * ratios[1, 0], 0.5 * ratios[1, 1]]
    assert made == pytest.approx(float(sum(expected)) / 5)
    assert value_and_gradient(gigpo.loss, SPEC)[0] == pytest.approx(-0.088148, abs=2e-6)
