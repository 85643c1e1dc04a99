"""Logprobs of chosen tokens from hidden states; a large vocabulary's logits never exist as a whole.

N chosen tokens, D width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SMALL_VOCABULARY = 4096
"""Up to here the logits of all chosen tokens are held, in fp32."""
CHUNK = 512
"""Tokens whose logits exist at a time beyond that."""


def selected_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    entropy_gradient: bool = False,
    rounded_logits: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return fp32 logprobs of the targets and the entropies (nats) of their distributions, constant unless asked.

    Logits are fp32 under autocast too: a logit near 20 is rounded by up to 0.06 in bf16, and so would a ratio of two
    policies be. `rounded_logits` takes autocast's type for a large vocabulary, which is faster and will do where no ratio
    is taken.
    """
    if weight_VD.shape[0] <= SMALL_VOCABULARY:
        with torch.autocast(hidden_ND.device.type, enabled=False):
            logprobs_NV = functional.linear(hidden_ND.float(), weight_VD.float()).log_softmax(-1)
        whole_NV = logprobs_NV if entropy_gradient else logprobs_NV.detach()
        entropy_N = -(whole_NV.exp() * whole_NV).sum(-1)
        return logprobs_NV.gather(1, targets_N[:, None])[:, 0], entropy_N
    of_logits = arithmetic(hidden_ND) if rounded_logits else torch.float32
    logprobs_N, entropy_N = _ChunkedLogprobs.apply(hidden_ND, weight_VD, targets_N, of_logits)
    return logprobs_N, entropy_N if entropy_gradient else entropy_N.detach()


def arithmetic(hidden: Tensor) -> torch.dtype:
    """Return the type that projections are computed in."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32


class _ChunkedLogprobs(torch.autograd.Function):
    """Project a chunk at a time; the backward pass projects again rather than keep logits.

    What the gradient is multiplied with is in autocast's type in either case.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, of_logits: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.dtype, ctx.of_logits = arithmetic(hidden_ND), of_logits
        weight = weight_VD.to(of_logits)
        count = len(targets_N)
        logprobs_N, entropy_N, norm_N = (torch.empty(count, device=hidden_ND.device) for _ in range(3))
        for i in range(0, count, CHUNK):
            part = slice(i, i + CHUNK)
            logits = _project(hidden_ND[part].to(of_logits), weight)
            most = logits.amax(-1)
            masses = (logits - most[:, None]).exp_()  # of one table the norm and the entropy
            whole = masses.sum(-1)
            norm_N[part] = norm = most + whole.log()
            logprobs_N[part] = logits.gather(1, targets_N[part, None])[:, 0] - norm
            entropy_N[part] = norm - masses.mul_(logits).sum(-1) / whole
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, norm_N, entropy_N)
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        hidden_ND, weight_VD, targets_N, norm_N, entropy_N = ctx.saved_tensors
        to_logprobs, to_entropy = gradients
        if to_logprobs is None:  # the loss reads the entropies alone
            to_logprobs = torch.zeros_like(norm_N)
        weight = weight_VD.to(ctx.dtype)
        of_logits = weight_VD.to(ctx.of_logits)
        to_hidden = torch.empty_like(hidden_ND)
        to_weight: Tensor | None = None
        for i in range(0, len(targets_N), CHUNK):
            part = slice(i, i + CHUNK)
            states, outer = hidden_ND[part], to_logprobs[part, None].float()
            logprobs = _project(states.to(ctx.of_logits), of_logits).sub_(norm_N[part, None])
            if to_entropy is None:
                slope = logprobs.exp_().mul_(-outer)
            else:  # dH/dz = -p (log p + H)
                by_entropy = (logprobs + entropy_N[part, None]).mul_(to_entropy[part, None].float())
                slope = logprobs.exp_().mul_(-outer - by_entropy)
            slope.scatter_add_(1, targets_N[part, None], outer)
            slope = slope.to(ctx.dtype)
            to_hidden[part] = (slope @ weight).to(to_hidden.dtype)
            part_of_weight = (slope.t() @ states.to(ctx.dtype)).float()
            to_weight = part_of_weight if to_weight is None else to_weight.add_(part_of_weight)
        if to_weight is None:
            to_weight = torch.zeros_like(weight_VD, dtype=torch.float32)
        return to_hidden, to_weight.to(weight_VD.dtype), None, None


def _project(states_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """Return logits in the type of both, as fp32."""
    with torch.autocast(states_ND.device.type, enabled=False):
        return (states_ND @ weight_VD.t()).float()
