"""The optimiser of a stage."""

from typing import Annotated, Literal

from pydantic import Field

from specs.base import Positive, Share, Shares, Spec


class Optimizer(Spec):
    """Optimiser and schedule of a stage."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon` treats matrices by Muon and the rest by AdamW."""
    learning_rate: Positive
    betas: Shares = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    final_fraction: Share = 0.05
    """Share of the learning rate left at the end of the schedule."""
    grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""
