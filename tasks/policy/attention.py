"""Attention whose backward pass is fast in bf16 on a CPU.

torch's own takes five to ten times its forward pass there, fp32 products included. B rows, T tokens, H heads, K
key-value heads, G = H/K, E head width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_SCORES = 2**22
"""Scores that exist at a time in the backward pass."""


def attention(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, seen: Tensor | None) -> Tensor:
    """Return softmax(q k' / sqrt(E)) v; `seen` is True where the token of axis -2 sees the one of axis -1, None is causal."""
    slow = v_BKTE.dtype == torch.bfloat16 and v_BKTE.device.type == "cpu" and torch.is_grad_enabled()
    if slow and seen is None:
        return _Causal.apply(q_BHTE, k_BKTE, v_BKTE)
    heads = q_BHTE.shape[1]
    given = (q_BHTE, _repeated(k_BKTE, heads), _repeated(v_BKTE, heads))
    if slow:  # fp32 takes a third of it
        with torch.autocast("cpu", enabled=False):
            whole = (t.float() for t in given)
            return functional.scaled_dot_product_attention(*whole, attn_mask=seen).to(v_BKTE.dtype)
    return functional.scaled_dot_product_attention(*given, attn_mask=seen, is_causal=seen is None)


def _repeated(t_BKTE: Tensor, heads: int) -> Tensor:
    """Return BHTE: for each query head what it shares with its group."""
    groups = t_BKTE.shape[1]
    return t_BKTE if groups == heads else t_BKTE.repeat_interleave(heads // groups, 1)


class _Causal(torch.autograd.Function):
    """torch's forward pass; the backward pass makes the weights of some heads at a time again.

    Keys and values are kept once for a group, values as a copy: they are a view of what the layer projects, which
    nothing else keeps.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v.contiguous())
        heads = q.shape[1]
        return functional.scaled_dot_product_attention(q, _repeated(k, heads), _repeated(v, heads), is_causal=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """The query heads of a group are further queries of its key-value head: (BK)(GT)E beside (BK)TE."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # once: gradient checkpointing gives them no second time
        asked, shared = saved[0].shape, saved[1].shape
        length, width = asked[-2:]
        group = asked[1] // shared[1]
        q, to_out = (t.reshape(-1, group * length, width) for t in (saved[0], gradients[0]))
        k, v = (t.reshape(-1, length, width) for t in saved[1:])
        scale = width**-0.5
        q = q * scale
        to_q, to_k, to_v = (torch.empty_like(t) for t in (q, k, v))
        unseen = torch.full((length, length), -torch.inf, dtype=q.dtype).triu(1).repeat(group, 1)
        heads = max(1, _SCORES // (group * length**2))
        for i in range(0, len(k), heads):
            part = slice(i, i + heads)
            weights = torch.baddbmm(unseen, q[part], k[part].mT).softmax(-1)
            to_v[part] = weights.mT @ to_out[part]
            to_weights = to_out[part] @ v[part].mT
            to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
            to_q[part] = (to_scores @ k[part]).mul_(scale)
            to_k[part] = to_scores.mT @ q[part]
        return to_q.view(asked), to_k.view(shared), to_v.view(shared)
