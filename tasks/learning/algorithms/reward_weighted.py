"""Reward-weighted maximum likelihood (RWR, Peters and Schaal 2007; AWR, arXiv:1910.00177).

w_i = softmax(R_i / T) over the trajectories of a problem, each problem counting the same, or over all; constant,
scaled to a mean of 1 and bounded by `max_weight`. L = -sum_i w_i sum_t log pi(y_it) / Z over all that was collected:
`weighted_tokens` Z = sum w_i n_i (free of scale), `sequences` sum w_i, `tokens` sum n_i mean(w). A step is an unbiased
part of it: Z is not taken anew from its rows, or a step of failures alone would train on them in full.
T to 0 keeps each problem's best, T to infinity weighs all alike. A problem whose rewards are equal weighs uniformly.
Left out: a learned value as the baseline. B rows, T tokens.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Literal

import torch

from specs.supervised import RewardWeighted
from tasks.tensors import Batch, LossOutput

AGGREGATION: dict[str, Literal["absolute_token", "sequence_sum"]] = {
    "weighted_tokens": "absolute_token",
    "sequences": "sequence_sum",
    "tokens": "absolute_token",
}
"""How the learner averages for a denominator."""


def shares(rewards: Sequence[float], groups: Sequence[Hashable], temperature: float) -> list[float]:
    """Return softmax(R / T) within each group, every group weighing the same; they sum to 1."""
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    result = [0.0] * len(rewards)
    for indices in members.values():
        highest = max(rewards[i] for i in indices)
        raw = [math.exp((rewards[i] - highest) / temperature) for i in indices]
        total = sum(raw) * len(members)
        for i, value in zip(indices, raw, strict=True):
            result[i] = value / total
    return result


def mean_one(rewards: Sequence[float], groups: Sequence[Hashable], spec: RewardWeighted) -> tuple[list[float], int]:
    """Return weights with a mean of 1 before they are bounded, and how many were bounded."""
    named = list(groups) if spec.among == "problem" else [0] * len(rewards)
    full = [len(rewards) * share for share in shares(rewards, named, spec.reward_temperature)]
    return [min(w, spec.max_weight) for w in full], sum(w > spec.max_weight for w in full)


def row_weights(
    weights: Sequence[float], tokens: Sequence[int], spec: RewardWeighted, parts: Sequence[float] | None = None
) -> list[float]:
    """Return weights that, averaged over `AGGREGATION[spec.denominator]`, give the loss; `tokens` train by row.

    `parts`: the share of a trajectory that a row is, where it may have several.
    """
    parts = parts or [1.0] * len(weights)
    if spec.denominator == "weighted_tokens":
        mean = sum(w * n for w, n in zip(weights, tokens, strict=True)) / sum(tokens)
    else:
        mean = sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(parts)
    return [w / mean for w in weights]


def effective(weights: Sequence[float]) -> float:
    """Return the effective number of trajectories, (sum w)^2 / sum w^2."""
    squared = sum(w * w for w in weights)
    return sum(weights) ** 2 / squared if squared else 0.0


def loss(batch: Batch, spec: RewardWeighted) -> LossOutput:
    """Return the weighted negative log-likelihood; weights and `spec.denominator` are in `weights_BT`."""
    kept_BT = torch.where(batch.weights_BT > 0, batch.logprobs_BT, 0.0)
    return LossOutput(loss=-(batch.weights_BT * kept_BT).sum(), metrics={})
