"""Muon: momentum whose matrices are orthogonalised by a Newton-Schulz iteration.

The update rule is that of `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")` (arXiv:2502.16982). Two things differ:
the iteration runs in fp32 (torch's bf16 is emulated, and many times slower, on CPUs without it), for all matrices of
a shape at once; and for oblong matrices it runs on the small Gram matrix: with A = X X^T every iterate is P(A) X for
a polynomial P, so only P(A) is iterated. K matrices of a shape, M rows, N columns, M <= N.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
MOMENTUM = 0.95
_EPS = 1e-7
_OBLONG = 1.5
"""Width over height from which the iteration on the Gram matrix is the cheaper one."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, at the root-mean-square that AdamW's updates have."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = orthogonalised(torch.stack([self._momentum(p) for p in parameters]))
                rate = 0.2 * math.sqrt(max(shape)) * group["lr"]
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)
        return loss

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer: Tensor = state["momentum_buffer"]
        buffer.lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(buffer, MOMENTUM)


def orthogonalised(matrices_KMN: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1 (about 0.7 to 1.2)."""
    tall = matrices_KMN.shape[1] > matrices_KMN.shape[2]
    x = matrices_KMN.float()
    x = x.mT if tall else x
    x = x / x.flatten(1).norm(dim=1).clamp(min=_EPS)[:, None, None]
    x = _by_gram(x) if x.shape[2] > _OBLONG * x.shape[1] else _directly(x)
    return (x.mT if tall else x).to(matrices_KMN.dtype)


def _directly(x_KMN: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x_KMN @ x_KMN.mT
        x_KMN = torch.baddbmm(x_KMN, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x_KMN, beta=a)
    return x_KMN


def _by_gram(x_KMN: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    gram = x_KMN @ x_KMN.mT
    product: Tensor | None = None
    for step in range(STEPS):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        if step < STEPS - 1:
            gram = factor @ gram @ factor
    assert product is not None
    return product @ x_KMN
