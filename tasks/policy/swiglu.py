"""The gated unit of a layer's inside; its gradient keeps what came in and nothing else.

torch's own keeps silu(gate) too, which is the widest a layer has. I inner width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, (..., I), of both side by side, (..., 2I)."""
    return _SwiGLU.apply(gate_up) if torch.is_grad_enabled() else _product(gate_up)


def _product(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


class _SwiGLU(torch.autograd.Function):
    """The operations of torch's own gradient, in their order: equal to it to the bit."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _product(gate_up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        to_both = torch.empty_like(gate_up)
        to_gate, to_up = to_both.chunk(2, -1)
        torch.mul(gradients[0], functional.silu(gate), out=to_up)
        to_gate.copy_(torch.ops.aten.silu_backward(gradients[0] * up, gate))
        return to_both
