"""Policy gradients that credit turns: those that start from the same state are compared."""

from typing import Literal, Self

from pydantic import model_validator

from specs.base import Flag, Positive, Share, Spec
from specs.policy_gradient import Clipped, NotNegative, PolicyGradient, unread


class TurnCredit(Spec):
    """An advantage for each turn: the trajectory's, plus the turn's own among visits of the same state."""

    anchor: Literal["observation", "history"] = "observation"
    """Two turns stand in the same state where the last call and its observation are equal, or all of them so far are."""
    discount: Share = 0.95
    """Share of a later turn's worth that an earlier one has."""
    turn_coef: NotNegative = 1.0
    """Weight of the turn's own advantage."""
    scale_rewards: Literal["group_std", "none"] = "none"
    """Whether differences are divided by their standard deviation, among trajectories and among visits alike."""
    std_floor: Positive = 1e-6
    """Added to the standard deviation."""

    @model_validator(mode="after")
    def _floor_is_read(self) -> Self:
        if self.scale_rewards == "none":
            unread(self, "std_floor", "with scale_rewards: none, which divides by nothing")
        return self


class GiGPO(PolicyGradient, Clipped, TurnCredit):
    """Group in group: turns that start from the same state are compared by what they led to."""

    type: Literal["gigpo"]
    statistics: Literal["trajectories", "turns"] = "trajectories"
    """Whether a trajectory counts once in its group's mean, or once for each turn."""
    turn_rewards: Flag = False
    """Count what a turn earned by itself there, and not at the end: its call, and scores that are means over turns."""


class G2PO(PolicyGradient, Clipped, TurnCredit):
    """Graph of a group: turns are compared by the worth of the state that they lead to."""

    type: Literal["g2po"]
    success_value: Positive = 10.0
    """Worth of the end of a success; that of a failure is 0."""
    invalid_penalty: NotNegative = 0.1
    """Taken off a turn whose call could not be used, where others left the same state."""
