"""The optimiser of a stage."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Positive, Share, Shares, Spec
from specs.bounds import unread


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
    """Share of the learning rate left at the end of a schedule that falls."""
    grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""

    @model_validator(mode="after")
    def _fall_is_read(self) -> Self:
        if self.schedule == "constant":
            unread(self, "final_fraction", "with schedule: constant; only linear and cosine fall")
        return self
