"""A critic that is a head of the policy: one gradient that is the sum of two, and a warm-up that moves the head alone."""

import pytest
import torch

from specs.grpo import GRPO
from specs.optimizer import Optimizer
from specs.policy import LoRA
from specs.value_based import Critic
from tasks.learning.algorithms import loss_for
from tasks.learning.critic import Estimate
from tasks.learning.gae import value_losses
from tasks.learning.shared_critic import ActorCritic
from tasks.learning.values import ValueModel
from tasks.policy.lora import adapted, difference
from tests.tasks.learning.tiny import learner, random_rows, tiny_model

LOSS = loss_for(GRPO(type="grpo"))
STILL = Optimizer(learning_rate=1e-9, grad_norm=1e9)
CRITIC = Critic(backbone="shared", coef=0.7, clip=0.3)


def rows_and_targets(seed=0):
    rows = random_rows(4, seed, advantage=0.5)
    for row in rows:
        row.sampler_logprobs = [-3.0] * len(row.ids)
    returns = [[0.1 * t - 0.4 for t in range(len(r.ids))] for r in rows]
    old = [[0.05 * t for t in range(len(r.ids))] for r in rows]
    return rows, Estimate(rows, returns), old


def made(optimizer=STILL, micro_batch_tokens=8192, adapter=None):
    torch.manual_seed(3)
    base = tiny_model()
    found = ActorCritic(
        base if adapter is None else adapted(base, adapter, 1), optimizer, 10, micro_batch_tokens=micro_batch_tokens
    )
    with torch.no_grad():
        found.model.get_parameter("value.weight").normal_(generator=torch.Generator().manual_seed(5))
    return found


def gradient(found, rows, *, alone=False, micro_batch_tokens=8192):
    caught = {}

    def look(report):
        caught["loss"] = report.loss
        caught["grad"] = {n: p.grad.clone() for n, p in found.model.named_parameters() if p.grad is not None}
        caught["figures"] = report.metrics

    found.step(rows, LOSS, guard=look)
    return caught


def test_the_gradient_is_the_sum_of_both():
    rows, target, old = rows_and_targets()
    both = made()
    assert "value_explained" in both.expect(target, old, CRITIC, alone=False)
    caught = gradient(both, rows)
    policy = tiny_model()
    alone = gradient(learner(policy, optimizer=STILL), rows)

    body = made().model
    assert isinstance(body, ValueModel)
    count, total = sum(r.trained for r in rows), torch.zeros(())
    for row, returns, before in zip(rows, target.returns, old, strict=True):
        values = body.numbers(body.hidden(torch.tensor([row.ids]))[0])
        for t, inside in enumerate(row.mask):
            if inside:
                numbers = (values[t - 1][None], torch.tensor([before[t]]), torch.tensor([returns[t]]))
                total = total + value_losses(*numbers, 0.3).sum() / count
    (0.7 * total).backward()
    assert caught["loss"] == pytest.approx(alone["loss"] + 0.7 * float(total.detach()), abs=1e-5)
    assert caught["figures"]["value_loss"] == pytest.approx(float(total.detach()), abs=1e-5)
    for name, own in body.named_parameters():
        assert own.grad is not None
        expected = own.grad + alone["grad"].get(name, 0.0)
        torch.testing.assert_close(caught["grad"][name], expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("micro_batch_tokens", [1, 40])
def test_any_split_gives_the_same_gradient(micro_batch_tokens):
    rows, target, old = rows_and_targets(4)
    found = []
    for tokens in (8192, micro_batch_tokens):
        one = made(micro_batch_tokens=tokens)
        one.expect(target, old, CRITIC, alone=False)
        found.append(gradient(one, rows))
    for name, whole in found[0]["grad"].items():
        torch.testing.assert_close(found[1]["grad"][name], whole, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("adapter", [None, LoRA(kind="lora", rank=2)])
def test_in_its_warm_up_the_policy_stays_as_it_is(adapter):
    rows, target, old = rows_and_targets()
    found = made(Optimizer(learning_rate=1e-2), adapter=adapter)
    ids = [3, 1, 4, 1, 5]
    before = [p.clone() for n, p in found.model.named_parameters() if not n.startswith("value.")]
    found.expect(target, old, CRITIC, alone=True)
    losses = [found.step(rows, LOSS).metrics["value_loss"] for _ in range(5)]
    assert losses[-1] < losses[0]
    after = [p for n, p in found.model.named_parameters() if not n.startswith("value.")]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    found.expect(target, old, CRITIC, alone=False)
    plain = found.plain()
    start = tiny_model()
    assert difference(plain, start, ids) == 0.0
    found.step(rows, LOSS)
    assert difference(found.plain(), start, ids) > 1e-4
    assert not any(n.startswith("value") for n, _ in found.plain().named_parameters())


def test_values_are_those_of_the_head_and_a_critic_of_its_own_refuses_its_settings():
    rows, *_ = rows_and_targets()
    found = made()
    assert isinstance(found.model, ValueModel)
    states = found.model.hidden(torch.tensor([rows[0].ids]))[0]
    first = rows[0].mask.index(True)
    assert found.values(rows)[0][first] == pytest.approx(
        float(found.model.numbers(states)[first - 1].detach()), abs=1e-5
    )
    with pytest.raises(ValueError, match="coef is not read with backbone: own"):
        Critic(coef=0.1)
    with pytest.raises(ValueError, match="optimizer is not read with backbone: shared"):
        Critic(backbone="shared", optimizer=Optimizer(learning_rate=0.5))
