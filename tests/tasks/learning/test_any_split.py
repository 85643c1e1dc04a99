"""Any split of a step into micro-batches gives the same loss and gradient: every family, head, adapter and memory setting."""

import random
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.grpo import GRPO
from specs.optimizer import Optimizer
from specs.policy import LoRA
from specs.preference import DPO, IPO, KTO, ORPO, SimPO
from specs.reward_models import RewardModel
from specs.supervised import RFT, SFT, RewardWeighted
from tasks.learning.algorithms import loss_for
from tasks.learning.algorithms.reward_weighted import AGGREGATION
from tasks.learning.critic import value_loss
from tasks.learning.learner import Learner
from tasks.learning.values import ValueLearner, ValueModel
from tasks.policy.lora import adapted
from tests.tasks.learning.tiny import random_rows, tiny_model

FLAT = Optimizer(learning_rate=1e-9, grad_norm=1e9)
GRPO_LOSS = loss_for(GRPO(type="grpo", kl_coef=0.1, entropy_coef=0.01))
PAIRS = [DPO(type="dpo", nll_coef=0.1), IPO(type="ipo"), ORPO(type="orpo"), SimPO(type="simpo"), KTO(type="kto")]
PLAIN = {
    "sft": (loss_for(SFT(type="sft")), "token"),
    "rft": (loss_for(RFT(type="rft")), "sequence"),
    "reward_weighted": (loss_for(RewardWeighted(type="reward_weighted")), AGGREGATION["weighted_tokens"]),
    "entropy": (GRPO_LOSS, "token"),
}


def paired_rows(count, seed, *, last=False):
    """Return the rows of pairs; `last`: judged at their last token alone."""
    rng = random.Random(seed)
    rows = random_rows(2 * count, seed)
    for i, row in enumerate(rows):
        row.pair, row.preferred, row.weight = f"p{i // 2}", i % 2 == 0, [0.5, 1.5][(i // 2) % 2]
        row.baseline = 0.1
        row.reference_logprobs = [rng.uniform(-4, -1) for _ in row.ids]
        if last:
            row.mask = [t == row.length - 1 for t in range(len(row.ids))]
            row.trained = 1
    return rows


def scored_rows(count, seed):
    rng = random.Random(seed)
    rows = random_rows(count, seed)
    for row in rows:
        row.weight = rng.uniform(0.2, 2.0)
        for name in ("sampler_logprobs", "reference_logprobs", "old_logprobs", "advantages"):
            setattr(row, name, [rng.uniform(-1.5, -0.5) for _ in row.ids])
    return rows


def valued(policy):
    model = ValueModel(policy)
    with torch.no_grad():
        model.value.weight.normal_(generator=torch.Generator().manual_seed(5))
    return model


def gradient(model, rows, loss, mean, tokens, **more):
    kind = ValueLearner if isinstance(model, ValueModel) else Learner
    caught = {}

    def look(report):
        caught["loss"] = report.loss
        caught["grad"] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    kind(model, FLAT, 1, micro_batch_tokens=tokens).step(rows, loss, mean, guard=look, **more)
    return caught["loss"], caught["grad"]


def same(build, rows, loss, mean, tokens, **more):
    whole = gradient(build(tiny_model()), rows, loss, mean, 8192, **more)
    split = gradient(build(tiny_model()), rows, loss, mean, tokens, **more)
    assert split[0] == pytest.approx(whole[0], abs=1e-5, rel=1e-5)
    torch.testing.assert_close(split[1], whole[1], atol=2e-5, rtol=1e-3)


DRAWN = given(seed=st.integers(0, 10_000), count=st.integers(1, 5), tokens=st.integers(1, 90))
FEW = settings(max_examples=4, deadline=None, derandomize=True)


def as_it_is(model):
    return model


def again(model):
    model.checkpointing = True
    return model


def with_adapter(model):
    made = adapted(model, LoRA(kind="lora", rank=2), 3)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("b_OR"):
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    return made


@pytest.mark.parametrize("build", [as_it_is, again, with_adapter])
@pytest.mark.parametrize("name", PLAIN)
@DRAWN
@FEW
def test_rows(build, name, seed, count, tokens):
    loss, mean = PLAIN[name]
    same(build, scored_rows(count, seed), loss, mean, tokens, entropy_gradient=name == "entropy")


@pytest.mark.parametrize("spec", PAIRS, ids=lambda s: s.type)
@DRAWN
@FEW
def test_pairs(spec, seed, count, tokens):
    same(as_it_is, paired_rows(count, seed), loss_for(spec), "absolute_sequence", tokens)


@DRAWN
@FEW
def test_a_critic(seed, count, tokens):
    same(valued, scored_rows(count, seed), partial(value_loss, clip=0.2), "token", tokens)


@pytest.mark.parametrize("learns", ["pairs", "turns"])
@DRAWN
@FEW
def test_a_reward_model(learns, seed, count, tokens):
    loss = loss_for(RewardModel(type="reward_model", learns=learns))
    if learns == "pairs":
        same(valued, paired_rows(count, seed, last=True), loss, "absolute_sequence", tokens)
        return
    rows = scored_rows(count, seed)
    for row in rows:
        row.advantages = [abs(a) / 2 for a in row.advantages or []]
    same(valued, rows, loss, "token", tokens)
