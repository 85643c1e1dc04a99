"""Weights on a grid of few bits: symmetric, one scale for a group of weights in a row.

R rows, G groups of a row, S weights of a group.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasks.policy.llama import Llama
from tasks.policy.pruning import blocks_of

_SHRINKS = 20
"""Smaller scales that are tried, down to half the largest weight's."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How weights are rounded."""

    bits: int
    group: int | None
    """Weights of a row that share a scale; all of them where None."""
    least_error: bool
    """Try smaller scales than the largest weight's, and keep the one with the least squared error."""

    @property
    def levels(self) -> int:
        """Return the largest whole number of the grid; it goes from minus this to this."""
        return 2 ** (self.bits - 1) - 1


@torch.no_grad()
def rounded(weight: Tensor, grid: Grid) -> Tensor:
    """Return the weight on the grid, in its own type. A last group that is short is padded with zeros."""
    size = grid.group or weight.shape[1]
    pad = -weight.shape[1] % size
    groups_RGS = functional.pad(weight.float(), (0, pad)).unflatten(1, (-1, size))
    largest_RG1 = groups_RGS.abs().amax(-1, keepdim=True) / grid.levels
    best = _on(groups_RGS, largest_RG1, grid.levels)
    if grid.least_error:
        error = (best - groups_RGS).square().sum(-1, keepdim=True)
        for i in range(1, _SHRINKS + 1):
            tried = _on(groups_RGS, largest_RG1 * (1 - 0.5 * i / _SHRINKS), grid.levels)
            new = (tried - groups_RGS).square().sum(-1, keepdim=True)
            best, error = torch.where(new < error, tried, best), torch.minimum(new, error)
    return best.flatten(1)[:, : weight.shape[1]].to(weight.dtype)


def _on(groups: Tensor, scale: Tensor, levels: int) -> Tensor:
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    return (groups / scale).round().clamp(-levels, levels) * scale


def targets(model: Llama, *, embedding: bool) -> dict[str, Tensor]:
    """Return the weights that are rounded, by name."""
    found: dict[str, Tensor] = {}
    for i, block in enumerate(blocks_of(model)):
        for name in ("qkv", "o", "gate_up", "down"):
            found[f"blocks.{i}.{name}"] = getattr(block, name).weight
    if embedding:
        found["embed"] = model.embed.weight
        if not model.config.tied:
            found["lm_head"] = model.lm_head.weight
    return found


@torch.no_grad()
def quantize(model: Llama, grid: Grid, *, embedding: bool) -> dict[str, float]:
    """Round the model's weights in place; return by name the relative error of what was rounded."""
    errors: dict[str, float] = {}
    for name, weight in targets(model, embedding=embedding).items():
        new = rounded(weight, grid)
        errors[name] = float((new - weight).norm() / weight.norm().clamp(min=1e-30))
        weight.copy_(new)
    return errors


def size_mb(model: Llama, grid: Grid, *, embedding: bool) -> float:
    """Return what the weights would take packed: their bits, a 16-bit scale for each group, the rest in 16 bits."""
    on_grid = targets(model, embedding=embedding).values()
    weights = sum(w.numel() for w in on_grid)
    scales = sum(w.shape[0] * -(-w.shape[1] // (grid.group or w.shape[1])) for w in on_grid)
    rest = sum(p.numel() for p in model.parameters()) - weights
    return (weights * grid.bits + scales * 16 + rest * 16) / 8e6
