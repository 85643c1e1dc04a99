"""Attention whose backward pass is fast in bf16 on a CPU.

torch's own takes five to ten times its forward pass there, fp32 products included. B rows, H heads, T tokens, E head
width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_SCORES = 2**22
"""Scores that exist at a time in the backward pass."""


def attention(q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, seen: Tensor | None) -> Tensor:
    """Return softmax(q k' / sqrt(E)) v; `seen` is True where the token of axis -2 sees the one of axis -1, None is causal."""
    slow = v_BHTE.dtype == torch.bfloat16 and v_BHTE.device.type == "cpu" and torch.is_grad_enabled()
    if slow and seen is None:
        return _Causal.apply(q_BHTE, k_BHTE, v_BHTE)
    if slow:  # fp32 takes a third of it
        with torch.autocast("cpu", enabled=False):
            whole = (t.float() for t in (q_BHTE, k_BHTE, v_BHTE))
            return functional.scaled_dot_product_attention(*whole, attn_mask=seen).to(v_BHTE.dtype)
    return functional.scaled_dot_product_attention(q_BHTE, k_BHTE, v_BHTE, attn_mask=seen, is_causal=seen is None)


class _Causal(torch.autograd.Function):
    """torch's forward pass; the backward pass makes the weights of some heads at a time again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # once: gradient checkpointing gives them no second time
        shape = saved[0].shape
        q, k, v, to_out = (t.reshape(-1, *shape[-2:]) for t in (*saved, *gradients))
        scale, length = shape[-1] ** -0.5, shape[-2]
        q = q * scale
        to_q, to_k, to_v = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
        unseen = torch.full((length, length), -torch.inf, dtype=q.dtype).triu(1)
        heads = max(1, _SCORES // length**2)
        for i in range(0, len(q), heads):
            part = slice(i, i + heads)
            weights = torch.baddbmm(unseen, q[part], k[part].mT).softmax(-1)
            to_v[part] = weights.mT @ to_out[part]
            to_weights = to_out[part] @ v[part].mT
            to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
            to_q[part] = (to_scores @ k[part]).mul_(scale)
            to_k[part] = to_scores.mT @ q[part]
        return tuple(t.view(shape) for t in (to_q, to_k, to_v))
