"""GRPO: clipped policy gradient on group-relative advantages (arXiv:2402.03300), asymmetric clip of DAPO (2503.14476).

A_i = (R_i - mean R) / (sample std R + 1e-6) within a group, or R_i - mean R (Dr. GRPO, 2503.20783).
L = -sum_it w_it min(r A, clip(r, 1-clip_low, 1+clip_high) A) + kl_coef sum_it w_it k3(pi || reference),
r = pi / pi_old where the trainer's logprobs before the update are given, else pi / sampler.
Left out: dual clip, constant-length aggregation, entropy bonus. k3 in the loss has the gradient of the forward KL.
B completions, T tokens.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

import torch
from torch import Tensor

from specs.algorithms import GRPO
from tasks.tensors import Batch, LossOutput, importance_ratio

FLAT = 1e-6
"""Standard deviation of a group's rewards below which they count as equal; also added to the divisor."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """How many groups there were, how many vary, are flat, or have fewer than two rewards; rewards not given."""

    groups: int
    varied: int
    flat: int
    too_few: int
    missing: int


def advantages(
    rewards: Sequence[float | None],
    groups: Sequence[Hashable],
    scale: Literal["group_std", "none"] = "group_std",
) -> tuple[list[float | None], GroupCounts]:
    """Return one advantage per reward and the counts.

    A reward of None (or NaN: it could not be given) takes no part in its group's statistics and gets None. A group
    without variance gets 0, and so does a group with a single reward: there is nothing to compare it with.
    """
    members: dict[Hashable, list[int]] = {}
    given = [r is not None and not math.isnan(r) for r in rewards]
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    result: list[float | None] = [0.0 if g else None for g in given]
    varied = flat = too_few = 0
    for indices in members.values():
        valid = [i for i in indices if given[i]]
        values = [float(rewards[i] or 0.0) for i in valid]
        if len(valid) < 2:
            too_few += 1
            continue
        spread = stdev(values)
        if spread < FLAT:
            flat += 1
            continue
        varied += 1
        mean, divisor = fmean(values), spread + FLAT if scale == "group_std" else 1.0
        for i, value in zip(valid, values, strict=True):
            result[i] = (value - mean) / divisor
    return result, GroupCounts(len(members), varied, flat, too_few, given.count(False))


def kl_k3(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return exp(-d) - 1 + d with d = logprob - reference inside the mask, 0 outside; d is clamped to 20 nats."""
    d_BT = torch.where(mask_BT, logprobs_BT - reference_BT, 0.0).clamp(-20.0, 20.0)
    return (-d_BT).exp() - 1 + d_BT


def loss(batch: Batch, spec: GRPO) -> LossOutput:
    """Return minus the clipped surrogate plus the KL term. Needs advantages and old or sampler logprobs."""
    old_BT = batch.old_logprobs_BT if batch.old_logprobs_BT is not None else batch.sampler_logprobs_BT
    assert old_BT is not None, "GRPO needs old or sampler logprobs"
    assert batch.advantages_BT is not None, "GRPO needs advantages"
    mask_BT = batch.weights_BT > 0
    ratio_BT = importance_ratio(batch.logprobs_BT, old_BT, mask_BT)
    clipped_BT = ratio_BT.clamp(1 - spec.clip_low, 1 + spec.clip_high)
    advantages_BT = torch.where(mask_BT, batch.advantages_BT, 0.0)
    plain_BT, bounded_BT = ratio_BT * advantages_BT, clipped_BT * advantages_BT
    total = -(batch.weights_BT * torch.minimum(plain_BT, bounded_BT)).sum()
    metrics = {"clip_fraction": (batch.weights_BT * (bounded_BT < plain_BT)).sum().detach()}
    if spec.kl_coef > 0:
        assert batch.reference_logprobs_BT is not None, "kl_coef > 0 needs reference logprobs"
        kl = (batch.weights_BT * kl_k3(batch.logprobs_BT, batch.reference_logprobs_BT, mask_BT)).sum()
        total = total + spec.kl_coef * kl
        metrics["reference_kl_k3"] = kl.detach()
    return LossOutput(loss=total, metrics=metrics)
