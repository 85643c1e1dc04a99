"""Batches for the tests of policy gradients."""

from typing import Any

import torch

from specs.group_relative import CISPO, DAPO, GSPO, REINFORCE, RLOO, DrGRPO
from specs.grpo import GRPO
from specs.self_teaching import RLSD, SelfDistilled, SelfEvolve
from specs.turn_credit import G2PO, GiGPO
from specs.value_based import PPO, SAO, TurnPPO
from tasks.tensors import Batch, token_weights

ALL = [
    REINFORCE(type="reinforce"),
    RLOO(type="rloo"),
    GRPO(type="grpo"),
    DrGRPO(type="dr_grpo"),
    DAPO(type="dapo"),
    GSPO(type="gspo"),
    CISPO(type="cispo"),
    GiGPO(type="gigpo"),
    G2PO(type="g2po"),
    PPO(type="ppo"),
    TurnPPO(type="turn_ppo"),
    SAO(type="sao"),
    RLSD(type="rlsd"),
    SelfDistilled(type="self_distilled"),
    SelfEvolve(type="self_evolve"),
]
LOGPROBS = [[-0.7, -2.4, -0.5], [-0.2, -0.4, -3.0]]
OLD = [[-1.0, -2.0, -0.5], [-1.5, -0.7, -3.0]]
MASK = [[1, 1, 1], [1, 1, 0]]
ADVANTAGES = [1.0, -0.5]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def batch(logprobs, old, mask, advantages, mean: Any = "token", **more):
    """Return a batch with one advantage per trajectory or per token."""
    advantages = torch.as_tensor(advantages, dtype=torch.float64)
    return Batch(
        logprobs,
        token_weights(torch.as_tensor(mask), mean).double(),
        sampler_logprobs_BT=torch.as_tensor(old, dtype=torch.float64),
        advantages_BT=advantages[:, None].expand(logprobs.shape) if advantages.dim() == 1 else advantages,
        **more,
    )


def value_and_gradient(loss, spec, mean: Any = "token", **more):
    """Return loss, gradient and metrics on the batch above."""
    logprobs = tensor(LOGPROBS).requires_grad_()
    output = loss(batch(logprobs, OLD, MASK, ADVANTAGES, mean, **more), spec)
    (gradient,) = torch.autograd.grad(output.loss, logprobs)
    return output.loss.item(), gradient.tolist(), {k: v.item() for k, v in output.metrics.items()}
