"""Batches and what losses return. B rows, T tokens; shapes are in the suffix."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor


@dataclass(slots=True)
class Batch:
    """Per-token tensors of one micro-batch, aligned: entry t belongs to the token at t.

    `weights_BT` is 0 where nothing trains and sums to 1 over the optimiser step (all its micro-batches).
    """

    logprobs_BT: Tensor
    """Trainer logprobs of the tokens, differentiable, at the sampling temperature."""
    weights_BT: Tensor
    sampler_logprobs_BT: Tensor | None = None
    """Behaviour logprobs, constant."""
    old_logprobs_BT: Tensor | None = None
    """Trainer logprobs before the first update of the step, constant."""
    reference_logprobs_BT: Tensor | None = None
    advantages_BT: Tensor | None = None
    entropy_BT: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.logprobs_BT.shape
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and value.shape != shape:
                raise ValueError(f"Batch.{f.name}: shape {tuple(value.shape)}, expected {tuple(shape)}")


@dataclass(slots=True)
class LossOutput:
    """A scalar to minimise and detached scalar metrics that add up over micro-batches."""

    loss: Tensor
    metrics: dict[str, Tensor]


Loss = Callable[[Batch], LossOutput]


def token_weights(mask_BT: Tensor, aggregation: Literal["token", "sequence"]) -> Tensor:
    """Return weights that are 0 outside the mask and sum to 1 over it (formulas: token-mean, seq-mean-token-mean).

    Rows without a trained token count nowhere. All zeros where the mask is empty.
    """
    mask = mask_BT.to(torch.float32)
    per_row = mask.sum(-1, keepdim=True)
    if aggregation == "token":
        return mask / mask.sum().clamp(min=1)
    rows = (per_row > 0).sum().clamp(min=1)
    return mask / per_row.clamp(min=1) / rows


def importance_ratio(logprobs_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return exp(logprob - old) inside the mask and 1 outside it; masked before exp, clamped to 20 nats."""
    difference = torch.where(mask_BT, logprobs_BT - old_BT, torch.zeros_like(logprobs_BT))
    return difference.clamp(-20.0, 20.0).exp()
