"""Divergences between policy and teacher, each with its slope in the policy's logits: pure arithmetic, no autograd.

    forward   sum p_T (log p_T - log p_S)                     slope p_S - p_T
    reverse   sum p_S (log p_S - log p_T)                     slope p_S ((log p_S - log p_T) - reverse)
    jsd       b KL(p_T || m) + (1 - b) KL(p_S || m), m = b p_T + (1 - b) p_S
                                                              slope (1 - b) p_S ((log p_S - log m) - KL(p_S || m))
    symmetric the mean of forward and reverse

Generalised JSD: Agarwal et al. 2024, arXiv:2306.13649. Left out: its end points b = 0 and 1, which are 0; write forward or
reverse. N tokens, V vocabulary, K listed tokens, M teachers.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specs.distillation import Direction

Rest = Literal["bucket", "none", "renormalize"]
_ALMOST_ALL = 1e-7
"""Least share that is left for the tokens beyond the listed ones, so that its logarithm is a number."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Which divergence: its direction and, for `jsd`, the teacher's share in the mixture."""

    direction: Direction
    beta: float = 0.5
    floor: float = -math.inf
    """Least logprob of the teacher that counts, where a missing probability would make the divergence infinite."""


@dataclass(frozen=True, slots=True)
class Listed:
    """How the likeliest tokens are told apart: how many, whose, and what stands for the rest."""

    size: int
    by_policy: bool
    rest: Rest = "bucket"


def divergence(policy_NV: Tensor, teacher_NV: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return by token the divergence of two distributions, given as logprobs, and its slope in the policy's logits."""
    if kind.direction == "symmetric":
        forward, slope_f = divergence(policy_NV, teacher_NV, Kind("forward"))
        reverse, slope_r = divergence(policy_NV, teacher_NV, Kind("reverse", floor=kind.floor))
        return (forward + reverse) / 2, slope_r.add_(slope_f).div_(2)
    if kind.direction == "forward":
        target_NV = teacher_NV.exp()
        value_N = torch.where(target_NV > 0, target_NV * (teacher_NV - policy_NV), 0.0).sum(-1)
        return value_N, policy_NV.exp().sub_(target_NV)
    share_NV = policy_NV.exp()
    if kind.direction == "reverse":
        gap_NV = policy_NV - teacher_NV.clamp(min=kind.floor)
        value_N = (share_NV * gap_NV).sum(-1)
        return value_N, gap_NV.sub_(value_N[:, None]).mul_(share_NV)
    b = kind.beta
    mixture_NV = torch.logaddexp(teacher_NV + math.log(b), policy_NV + math.log1p(-b))
    target_NV = teacher_NV.exp()
    of_teacher_N = torch.where(target_NV > 0, target_NV * (teacher_NV - mixture_NV), 0.0).sum(-1)
    gap_NV = policy_NV - mixture_NV
    of_policy_N = (share_NV * gap_NV).sum(-1)
    value_N = b * of_teacher_N + (1 - b) * of_policy_N
    return value_N, gap_NV.sub_(of_policy_N[:, None]).mul_(share_NV).mul_(1 - b)


def listed_divergence(
    policy_NV: Tensor, teacher_NV: Tensor, kind: Kind, listed: Listed
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the divergence over the likeliest tokens and the rest, its slope in all logits, and figures by token.

    With a bucket for the rest it is a lower bound of the divergence over the whole vocabulary.
    """
    size = min(listed.size, policy_NV.shape[-1])
    own_NK, ranked_NK = (likeliest(x, size) for x in (policy_NV, teacher_NV))
    support_NK = own_NK if listed.by_policy else ranked_NK
    value_N, slope_NV, shares = _on_list(policy_NV, support_NK, teacher_NV.gather(1, support_NK), kind, listed.rest)
    return value_N, slope_NV, shares | {"overlap": _overlap(own_NK, ranked_NK)}


def given_divergence(
    policy_NV: Tensor, support_NK: Tensor, teacher_NK: Tensor, kind: Kind, rest: Rest
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the same where all that is known of the teacher is the list of its likeliest tokens with their logprobs.

    What it does not list is unknown one by one and never 0: together it has what the list leaves.
    """
    own_NK = likeliest(policy_NV, support_NK.shape[-1])
    value_N, slope_NV, shares = _on_list(policy_NV, support_NK, teacher_NK, kind, rest)
    return value_N, slope_NV, shares | {"overlap": _overlap(own_NK, support_NK)}


def _overlap(one_NK: Tensor, other_NK: Tensor) -> Tensor:
    """Return the share of a list that the other one holds too."""
    return (one_NK[:, :, None] == other_NK[:, None, :]).any(-1).float().mean(-1)


def _on_list(
    policy_NV: Tensor, support_NK: Tensor, teacher_NK: Tensor, kind: Kind, rest: Rest
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    policy_NK = policy_NV.gather(1, support_NK)
    shares = {"teacher_mass": teacher_NK.exp().sum(-1), "policy_mass": policy_NK.exp().sum(-1)}
    if rest == "renormalize":
        policy_NK, teacher_NK = policy_NK.log_softmax(-1), teacher_NK.log_softmax(-1)
        value_N, inner_NK = divergence(policy_NK, teacher_NK, kind)
        return value_N, torch.zeros_like(policy_NV).scatter_(1, support_NK, inner_NK), shares
    if rest == "bucket":
        policy_NK, teacher_NK = (torch.cat((x, rest_logprob(x)), -1) for x in (policy_NK, teacher_NK))
    value_N, by_logprob_NK = _terms(policy_NK, teacher_NK, kind)
    slope_NV = policy_NV.exp()
    whole_N1 = by_logprob_NK.sum(-1, keepdim=True)
    if rest == "bucket":  # the rest's logprob rises with each of its tokens by that token's share of it
        of_rest_N1 = by_logprob_NK[:, -1:] / policy_NK[:, -1:].exp()
        inside_NK = policy_NK[:, :-1].exp() * -whole_N1 + by_logprob_NK[:, :-1]
        return value_N, slope_NV.mul_(of_rest_N1 - whole_N1).scatter_(1, support_NK, inside_NK), shares
    return value_N, slope_NV.mul_(-whole_N1).scatter_add_(1, support_NK, by_logprob_NK), shares


def _terms(policy_NK: Tensor, teacher_NK: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return the sum of the divergence's terms over some outcomes, and its slope in the policy's logprobs of them."""
    share_NK, target_NK = policy_NK.exp(), teacher_NK.exp()
    if kind.direction == "forward":
        return torch.where(target_NK > 0, target_NK * (teacher_NK - policy_NK), 0.0).sum(-1), -target_NK
    if kind.direction == "reverse":
        gap_NK = policy_NK - teacher_NK.clamp(min=kind.floor)
        return (share_NK * gap_NK).sum(-1), share_NK * (gap_NK + 1)
    if kind.direction == "symmetric":
        forward, slope_f = _terms(policy_NK, teacher_NK, Kind("forward"))
        reverse, slope_r = _terms(policy_NK, teacher_NK, Kind("reverse", floor=kind.floor))
        return (forward + reverse) / 2, (slope_f + slope_r) / 2
    b = kind.beta
    mixture_NK = torch.logaddexp(teacher_NK + math.log(b), policy_NK + math.log1p(-b))
    of_teacher_NK = torch.where(target_NK > 0, target_NK * (teacher_NK - mixture_NK), 0.0)
    of_policy_NK = share_NK * (policy_NK - mixture_NK)
    return (b * of_teacher_NK + (1 - b) * of_policy_NK).sum(-1), (1 - b) * of_policy_NK


def rest_logprob(listed_NK: Tensor) -> Tensor:
    """Return (N, 1): the logprob of everything beyond the listed tokens, a number even where they have all."""
    return torch.log(-torch.expm1(listed_NK.logsumexp(-1, keepdim=True).clamp(max=-_ALMOST_ALL)))


def likeliest(logprobs_NV: Tensor, size: int) -> Tensor:
    """Return the tokens with the highest logprobs, the highest first; of equals the one with the lower id."""
    values_NK, chosen_NK = logprobs_NV.topk(min(size + 1, logprobs_NV.shape[-1]), dim=-1)
    tied_N = (values_NK[:, 1:] == values_NK[:, :-1]).any(-1)
    chosen_NK = chosen_NK[:, :size]
    if bool(tied_N.any()):
        chosen_NK[tied_N] = logprobs_NV[tied_N].sort(dim=-1, descending=True, stable=True)[1][:, :size]
    return chosen_NK


def mixture(logprobs_MNV: Tensor, weights_MN: Tensor) -> Tensor:
    """Return the logprobs of the weighted mean of distributions; a weight of 0 leaves a teacher out."""
    return (logprobs_MNV + weights_MN.log()[:, :, None]).logsumexp(0)


def log_linear(logprobs_MNV: Tensor, weights_MN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logprobs of the weighted product of distributions, made to sum to 1, and the log of their sum before."""
    weighted_NV = (logprobs_MNV * weights_MN[:, :, None]).sum(0)
    log_sum_N = weighted_NV.logsumexp(-1)
    return weighted_NV - log_sum_N[:, None], log_sum_N


def confidence_weights(logprobs_MNV: Tensor, weights_MN: Tensor) -> Tensor:
    """Return weights multiplied by 1 - entropy / log V of each teacher, summing to 1; as given where all are uniform."""
    sure_MN = confidence(logprobs_MNV).clamp(min=0.0) * weights_MN
    total_N = sure_MN.sum(0)
    return torch.where(total_N > 0, sure_MN / total_N.clamp(min=1e-30), weights_MN)


def confidence(logprobs_MNV: Tensor) -> Tensor:
    """Return 1 - entropy / log V."""
    return 1 - entropy(logprobs_MNV) / math.log(logprobs_MNV.shape[-1])


def entropy(logprobs: Tensor) -> Tensor:
    """Return the entropy in nats over the last axis."""
    share = logprobs.exp()
    return -torch.where(share > 0, share * logprobs, 0.0).sum(-1)
