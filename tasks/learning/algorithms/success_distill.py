"""Success distillation: verified successes of a frozen self teach the policy, beside a clipped policy gradient.

L = L_clipped + coef L_SD. L_SD is the mean, over the taught tokens alone, of - v log pi (their likelihood), or of
v KL(frozen || pi) over the frozen self's likeliest tokens and one bucket for the rest. v is proportional to reward x
(shortness where the trajectory is shorter than its type's usual one), with a mean of 1. Taught are trajectories that the
frozen self sampled, that ended, and that the outcome's verifiers passed; where there is none, L_SD is 0. `coef` is that
of the step. Left out: -mean(frozen logprob x logprob), a slip that lowers what it means to raise.
B trajectories, T tokens.
"""

import math
from collections.abc import Sequence
from statistics import median

import torch

from specs.self_teaching import SelfTaught, SuccessDistill
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def loss(batch: Batch, spec: SelfTaught) -> LossOutput:
    """Return minus the clipped surrogate of the policy's own rollouts."""
    t = terms(batch, spec)
    return total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))


def distillation(batch: Batch, spec: SuccessDistill) -> LossOutput:
    """Return `coef` times the mean negative likelihood of the taught tokens."""
    inside_BT = batch.weights_BT > 0
    return LossOutput(-spec.coef * (batch.weights_BT * torch.where(inside_BT, batch.logprobs_BT, 0.0)).sum(), {})


def divergence(batch: Batch, spec: SuccessDistill) -> LossOutput:
    """Return `coef` times the mean divergence from the frozen self's likeliest tokens, which the forward pass found."""
    assert batch.distilled is not None, "a divergence over a vocabulary needs the learner's distiller"
    return LossOutput(spec.coef * batch.distilled, {})


def trajectory_weights(
    rewards: Sequence[float], tokens: Sequence[int], types: Sequence[str], shortness: float
) -> list[float]:
    """Return weights proportional to reward x shortness, with a mean of 1; all alike where no reward is above 0."""
    usual = {k: median(n for n, t in zip(tokens, types, strict=True) if t == k) for k in set(types)}
    raw = [max(0.0, r) * (shortness if n < usual[t] else 1.0) for r, n, t in zip(rewards, tokens, types, strict=True)]
    mean = math.fsum(raw) / max(1, len(raw))
    return [r / mean for r in raw] if mean > 0 else [1.0] * len(raw)


def least_sure(entropies: Sequence[Sequence[float]], masks: Sequence[Sequence[bool]], share: float) -> list[list[bool]]:
    """Return masks that keep the `share` of all tokens with the highest entropy; of equals the earlier ones."""
    places = [(-entropies[i][t], i, t) for i, mask in enumerate(masks) for t, inside in enumerate(mask) if inside]
    kept = {(i, t) for _, i, t in sorted(places)[: math.ceil(share * len(places))]}
    return [[(i, t) in kept for t in range(len(mask))] for i, mask in enumerate(masks)]
