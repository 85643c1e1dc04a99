"""Optimisers and their schedule: AdamW for all, or Muon for matrices and AdamW for the rest."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from specs.optimizer import Optimizer
from tasks.learning.muon import Muon


def learning_rate_at(spec: Optimizer, step: int, total_steps: int) -> float:
    """Return the learning rate of the step with this index; it falls to `final_fraction` at `total_steps`."""
    warm = min(1.0, (step + 1) / spec.warmup_steps) if spec.warmup_steps else 1.0
    progress = min(1.0, step / max(1, total_steps))
    match spec.schedule:
        case "constant":
            fall = 1.0
        case "linear":
            fall = spec.final_fraction + (1 - spec.final_fraction) * (1 - progress)
        case "cosine":
            fall = spec.final_fraction + (1 - spec.final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))
    return spec.learning_rate * warm * fall


def optimizers_for(spec: Optimizer, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[torch.optim.Optimizer]:
    """Return the optimisers that together own every named parameter once."""
    named = list(parameters)
    matrices = [p for name, p in named if p.dim() == 2 and "embed" not in name and "lm_head" not in name]
    if spec.kind == "adamw" or not matrices:
        return [_adamw(spec, [p for _, p in named])]
    owned = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in owned]
    muon = Muon(matrices, lr=spec.learning_rate, weight_decay=spec.weight_decay)
    return [muon, _adamw(spec, rest)] if rest else [muon]


def _adamw(spec: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    first, second = spec.betas
    return torch.optim.AdamW(
        parameters, lr=spec.learning_rate, betas=(first, second), weight_decay=spec.weight_decay, fused=True
    )
