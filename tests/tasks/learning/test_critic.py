import pytest
import torch

from specs.value_based import PPO, SAO, Critic, TurnPPO
from tasks.learning.critic import CriticLearner, ValueModel, estimate
from tasks.learning.gae import adaptive_lambda, gae, whitened
from tasks.learning.rows import TrainingRow
from tests.tasks.learning.tiny import random_rows, tiny_model


def row(mask, reward, name="r"):
    return TrainingRow(id=name, source="s", ids=list(range(1, len(mask) + 1)), mask=mask, advantage=reward)


def test_observations_are_skipped_and_the_reward_stands_on_the_last_trained_token():
    spec = PPO(type="ppo", whiten=False)
    skipping = row([False, True, True, False, False, True, True, False], 1.0)
    whole = row([False, True, True, True, True], 1.0)
    returns = estimate([skipping], [[9.0, 0.1, 0.2, 9.0, 9.0, 0.4, 0.6, 9.0]], spec).returns[0]
    assert skipping.advantages == pytest.approx([0, 0.81345, 0.751, 0, 0, 0.58, 0.4, 0])
    assert returns == pytest.approx([0, 0.91345, 0.951, 0, 0, 0.98, 1.0, 0])
    packed = estimate([whole], [[9.0, 0.1, 0.2, 0.4, 0.6]], spec).returns[0]
    assert [v for v in returns if v] == pytest.approx(packed[1:])


def test_what_turns_earned_by_themselves_stands_on_them_and_the_rest_at_the_end():
    values = [9.0, 0.1, 0.2, 9.0, 0.4, 0.6, 9.0, 0.5]
    mask = [False, True, True, False, True, True, False, True]
    own = [0.0, 0.3, 0.3, 0.0, -0.2, -0.2, 0.0, 0.0]

    def returns(spec, *, by_turn=False, mask=mask, own=own):
        made = row(mask, 1.0)
        made.rewards = own
        return estimate([made], [values], spec, by_turn=by_turn).returns[0]

    monte_carlo = {"gae_lambda": 1.0, "discount": 1.0, "whiten": False}
    by_token = PPO(type="ppo", turn_rewards=True, **monte_carlo)
    assert returns(by_token) == pytest.approx([0, 1.0, 1.0, 0, 0.7, 0.7, 0, 0.9])
    assert returns(PPO(type="ppo", **monte_carlo)) == pytest.approx([0, 1, 1, 0, 1, 1, 0, 1])
    assert returns(by_token, own=None) == pytest.approx([0, 1, 1, 0, 1, 1, 0, 1])
    turns = TurnPPO(type="turn_ppo", turn_rewards=True, **monte_carlo)
    assert returns(turns, by_turn=True) == pytest.approx([0, 1.0, 0, 0, 0.7, 0, 0, 0.9])
    without = [False, True, True, False, False, False, False, True]  # nothing of the second turn trains
    assert returns(by_token, mask=without) == pytest.approx([0, 1.0, 1.0, 0, 0, 0, 0, 0.7])


def test_the_contexts_of_a_trajectory_share_its_reward_whatever_their_turns_earned():
    spec = PPO(type="ppo", turn_rewards=True, gae_lambda=1.0, whiten=False)
    rows = [row([False, True], 1.0), row([False, True, True], 1.0)]
    for part, own in zip(rows, ([0.0, 0.25], [0.0, 0.0, 0.0]), strict=True):
        part.trajectory, part.contexts, part.rewards = "t", 2, own
    found = estimate(rows, [[0.0] * 2, [0.0] * 3], spec).returns
    assert found == [pytest.approx([0, 1.0]), pytest.approx([0, 0.75, 0.75])]


def test_the_critic_may_learn_with_another_lambda_than_the_policy():
    spec = SAO(type="sao")
    made = row([False, True, True, True, True], 1.0)
    returns = estimate([made], [[0.0, 0.2, 0.4, 0.5, 0.7]], spec).returns[0]
    assert made.advantages == pytest.approx([0, 0.595833, 0.475, 0.45, 0.3], abs=1e-6)
    assert returns == pytest.approx([0, 1, 1, 1, 1])


def test_a_turn_has_the_value_before_its_first_token_and_one_advantage():
    spec = TurnPPO(type="turn_ppo", whiten=False)
    made = row([False, True, True, False, True, True, True], 1.0)
    found = estimate([made], [[9.0, 0.5, 7.0, 9.0, 0.6, 7.0, 7.0]], spec, by_turn=True)
    last = 1.0 - 0.6
    first = 0.99 * 0.6 - 0.5 + 0.99 * 0.9 * last
    assert made.advantages == pytest.approx([0, first, first, 0, last, last, last])
    assert found.rows[0].mask == [False, True, False, False, True, False, False]
    assert found.returns[0] == pytest.approx([0, first + 0.5, 0, 0, 1.0, 0, 0])


def test_lambdas_and_whitening_at_their_edges():
    mask = torch.tensor([[True, False], [False, False]])
    assert adaptive_lambda(mask, 0.5).tolist() == [0.0, 0.0]
    one = torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    assert whitened(one, mask).tolist() == one.tolist()
    empty = torch.zeros(1, 3, dtype=torch.bool)
    advantages, returns = gae(torch.ones(1, 3), torch.full((1, 3), torch.nan), empty, 1.0, torch.ones(1))
    assert not advantages.any()
    assert not returns.any()


def test_a_critic_begins_at_zero_leaves_the_policy_alone_and_learns():
    policy = tiny_model()
    before = [p.clone() for p in policy.parameters()]
    spec = Critic(updates_per_batch=4, clip=None)
    critic = CriticLearner(policy, spec, 10)
    rows = random_rows(4)
    assert all(v == 0.0 for values in critic.values(rows) for v in values)
    targets = [[0.5 if m else 0.0 for m in r.mask] for r in rows]
    losses = [critic.fit(rows, targets, critic.values(rows), spec)["value_loss"] for _ in range(10)]
    assert losses[0] == pytest.approx(0.125)
    assert losses[-1] < 0.02
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert all(row.advantages is None for row in rows)


def test_a_bound_on_values_keeps_them_from_moving_further():
    rows = random_rows(4)
    targets = [[1.0 if m else 0.0 for m in r.mask] for r in rows]
    spec = Critic(updates_per_batch=40, clip=0.05)
    critic = CriticLearner(tiny_model(), spec, 1)
    critic.fit(rows, targets, critic.values(rows), spec)
    moved = [
        v for r, values in zip(rows, critic.values(rows), strict=True) for m, v in zip(r.mask, values, strict=True) if m
    ]
    free = Critic(updates_per_batch=40, clip=None)
    other = CriticLearner(tiny_model(), free, 1)
    other.fit(rows, targets, other.values(rows), free)
    unbound = [
        v for r, values in zip(rows, other.values(rows), strict=True) for m, v in zip(r.mask, values, strict=True) if m
    ]
    assert sum(moved) < sum(unbound)


def test_its_state_is_complete():
    spec, rows = Critic(), random_rows(3)
    targets = [[0.3 if m else 0.0 for m in r.mask] for r in rows]
    whole, other = (CriticLearner(tiny_model(), spec, 4) for _ in range(2))
    whole.fit(rows, targets, whole.values(rows), spec)
    tensors, data = whole.state()
    other.load_state({n: t.clone() for n, t in tensors.items()}, data)
    for critic in (whole, other):
        critic.fit(rows, targets, critic.values(rows), spec)
    assert isinstance(whole.model, ValueModel)
    assert whole.values(rows) == other.values(rows)
