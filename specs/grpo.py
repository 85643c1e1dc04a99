"""GRPO, which most programs use: a module of its own, so that a check imports no other policy gradient for it."""

from typing import Literal, Self

from pydantic import model_validator

from specs.base import Positive
from specs.bounds import unread
from specs.policy_gradient import Clipped, PolicyGradient


class GRPO(PolicyGradient, Clipped):
    """Clipped policy gradient on group-relative advantages."""

    type: Literal["grpo"]
    scale_rewards: Literal["group_std", "group_population_std", "batch_std", "none"] = "group_std"
    """What a reward's distance from its group's mean is divided by."""
    std_floor: Positive = 1e-6
    """Added to the standard deviation."""

    @model_validator(mode="after")
    def _floor_is_read(self) -> Self:
        if self.scale_rewards == "none":
            unread(self, "std_floor", "with scale_rewards: none, which divides by nothing")
        return self
