"""Root-mean-square norm; under autocast its gradient is one function, where torch's own is a dozen passes over memory.

N tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x (..., D) scaled to unit mean square, times the weight."""
    if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type) and torch.is_grad_enabled():
        return _RMSNorm.apply(x, weight_D, eps)
    return functional.rms_norm(x, weight_D.shape, weight_D.to(x.dtype), eps)


class _RMSNorm(torch.autograd.Function):
    """y = x r w with r = (mean x^2 + eps)^-1/2, in fp32; keeps x and r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            r = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
            ctx.save_for_backward(x, weight_D, r)
            return (x * r).mul_(weight_D)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """dL/dx = r (g w - x r^2 mean(g w x)), dL/dw = sum over tokens of g x r."""
        x, weight_D, r = ctx.saved_tensors
        width = x.shape[-1]
        with torch.autocast(x.device.type, enabled=False):
            to_y = gradients[0].float()
            by_x = to_y * x
            to_weight = r.reshape(-1) @ by_x.view(-1, width) if ctx.needs_input_grad[1] else None
            mean = (by_x @ weight_D)[..., None].mul_(r * r).div_(-width)
            return (to_y * weight_D).addcmul_(x, mean).mul_(r), to_weight, None
