"""Listwise soft labels: draw the policy's distribution over candidates to a teacher's (ListNet; formula sheet 8.5).

q = softmax(scores / tau) over the candidates of one prompt, u_i what the policy thinks of candidate i,
L = - sum_lists w sum_i q_i log softmax(u / kappa)_i, with dL/du = w (softmax(u / kappa) - q) / kappa.
u is the mean logprob of a candidate's tokens (default: lengths compare), their sum, or the mean log-ratio to the start.
The metric `kl` is L less the target's own entropy. A list of one candidate has no gradient.
Left out: ListMLE over the whole order. B rows, T tokens, C lists.
"""

import torch
from torch import Tensor

from specs.ladder import Listwise
from tasks.tensors import Batch, LossOutput, log_ratios, row_sums


def target(scores: Tensor, tau: float) -> Tensor:
    """Return the soft target over one list's candidates."""
    return torch.softmax(scores / tau, dim=-1)


def utilities(sums_B: Tensor, tokens_B: Tensor, utility: str) -> Tensor:
    """Return what a policy thinks of candidates: the mean over their tokens, or the sum."""
    return sums_B if utility == "sum" else sums_B / tokens_B.clamp(min=1)


def log_softmax_in_lists(values_B: Tensor, lists_B: Tensor) -> Tensor:
    """Return the log-softmax of values, each within its list."""
    count = int(lists_B.max()) + 1 if len(lists_B) else 0
    highest_C = values_B.new_full((count,), -torch.inf).scatter_reduce(0, lists_B, values_B.detach(), "amax")
    shifted_B = values_B - highest_C[lists_B]
    totals_C = values_B.new_zeros(count).scatter_add(0, lists_B, shifted_B.exp())
    return shifted_B - totals_C.log()[lists_B]


def loss(batch: Batch, spec: Listwise) -> LossOutput:
    """Return the cross-entropy between target and policy over each list; needs lists and targets."""
    assert batch.lists_B is not None, "a listwise loss needs to know the lists"
    assert batch.targets_B is not None, "a listwise loss needs its target"
    values_BT = log_ratios(batch) if spec.utility == "ratio" else batch.logprobs_BT
    sums_B, tokens_B = row_sums(values_BT, batch.weights_BT)
    log_p_B = log_softmax_in_lists(utilities(sums_B, tokens_B, spec.utility) / spec.kappa, batch.lists_B)
    shares_B = batch.weights_BT.sum(-1)
    weights_C = shares_B.new_zeros(int(batch.lists_B.max()) + 1).scatter_add(0, batch.lists_B, shares_B)
    weights_B, target_B = weights_C[batch.lists_B], batch.targets_B
    loss_B = -weights_B * target_B * log_p_B
    entropy_B = -weights_B * torch.where(target_B > 0, target_B * target_B.clamp(min=1e-30).log(), 0.0)
    agreed = (weights_B * target_B * log_p_B.exp()).sum()
    metrics = {"kl": (loss_B.sum() - entropy_B.sum()).detach(), "overlap": agreed.detach()}
    return LossOutput(loss=loss_B.sum(), metrics=metrics)
