"""Reward models: what a stage learns from verified trajectories, to judge the rollouts of later stages."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Positive, Share, Spec
from specs.bounds import CutBound
from specs.optimizer import Optimizer
from specs.policy_gradient import unread
from specs.preference import Pairing


class TurnLabels(CutBound):
    """How turns of the policy's own rollouts are labelled, each with a number from 0 to 1."""

    by: Literal["visits", "outcome", "calls"] = "visits"
    """Success among the trajectories that made the same calls so far; the trajectory's own; whether the call did something."""
    samples: Annotated[int, Field(ge=2)] = 8
    """Trajectories drawn for each problem."""
    problems: Count | None = None
    """Problems that are tried; all where left out."""
    temperature: Positive = 1.0
    at_least: Annotated[int, Field(ge=0)] = 32
    """Labelled turns below which the stage stops; 0 goes on without any, to a model that tells nothing apart."""


class RewardModel(Spec):
    """Learn a number for a trajectory from pairs (Bradley-Terry), or for each of its turns from their labels.

    The stage hands its policy on as it is; a verifier of kind `reward_model` uses what was learnt.
    """

    type: Literal["reward_model"]
    learns: Literal["pairs", "turns"] = "pairs"
    """Which of two trajectories is better, or which turns are good (a process reward model)."""
    pairing: Pairing = Pairing()
    turns: TurnLabels = TurnLabels()
    use_margin: Literal["none", "reward"] = "none"
    """Ask that the chosen one be ahead by more than the difference of the two rewards, or by anything."""
    center_coef: Annotated[float, Field(ge=0.0)] = 0.01
    """Weight of (r+ + r-)^2, which keeps the numbers around 0."""
    epochs: Positive = 2.0
    rows_per_step: Count = 32
    """Trajectories of a step; both of a pair count."""
    optimizer: Optimizer = Optimizer(learning_rate=5e-4)
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Share of the problems that do not train and tell how often the model is right."""
    least_accuracy: Share = 0.55
    """Share of held-out pairs in the right order, or of good turns before bad ones, below which the stage stops; 0 asks for
    nothing, also where the model judges."""

    @model_validator(mode="after")
    def _pairs_are_made(self) -> Self:
        if self.pairing.choose == "alone":
            raise ValueError("pairing.choose: alone makes no pairs, which a reward model needs; use best_worst or all")
        return self

    @model_validator(mode="after")
    def _what_it_learns_is_read(self) -> Self:
        if self.learns == "pairs":
            unread(self, "turns", "with learns: pairs")
        else:
            why = "with learns: turns, where nothing is compared in pairs"
            for name in ("pairing", "use_margin", "center_coef"):
                unread(self, name, why)
        return self
