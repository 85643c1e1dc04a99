"""Muon: momentum whose matrix updates are made orthogonal by a Newton-Schulz iteration.

Jordan et al. 2024; scaled as AdamW is (Liu et al. 2025, arXiv:2502.16982: 0.2 * sqrt(max(rows, columns))).
Why not `torch.optim.Muon`: it iterates in bfloat16, which on a CPU without bfloat16 units is 25 times
slower than float32; here the iteration is in the parameter's dtype, and matrices of one shape go together.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalised(matrices_NRC: Tensor, iterations: int = 5) -> Tensor:
    """Return N matrices of R rows and C columns with singular values pushed towards 1."""
    x = matrices_NRC
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.transpose(-1, -2)
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.transpose(-1, -2) if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for 2-D parameters; learning rates have the size that AdamW's have."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(f"Muon treats matrices only, found shape {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for shape, params in by_shape.items():
                updates = orthogonalised(torch.stack([self._momentum(p, group["momentum"]) for p in params]))
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for p, update in zip(params, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update, alpha=-scale)

    def _momentum(self, p: Tensor, momentum: float) -> Tensor:
        """Return the Nesterov-style direction and keep the running mean."""
        assert p.grad is not None
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        buffer = state["momentum_buffer"]
        buffer.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(buffer, momentum)
