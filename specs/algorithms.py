"""Algorithms: what a stage does to the policy. Each file of `tasks/learning/algorithms` reads its own class."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Positive, Share, Shares, Spec


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


class SupervisedBatch(Spec):
    """How rows become optimiser steps; exactly one of the two sizes is given."""

    tokens: Count | None = None
    """Padded tokens of one step (rows of like length together)."""
    rows: Count | None = None
    """Trajectories of one step."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.tokens is None) == (self.rows is None):
            raise ValueError("expected exactly one of tokens and rows")
        return self


class SFT(Spec):
    """Maximum likelihood of the policy's tokens in demonstrations."""

    type: Literal["sft"]
    epochs: Positive = 1.0
    batch: SupervisedBatch = SupervisedBatch(tokens=4096)
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    aggregation: Literal["token", "sequence"] = "token"


class RFT(Spec):
    """Rejection sampling: train on the policy's own verified trajectories."""

    type: Literal["rft"]
    samples: Count = 4
    """Trajectories drawn for each problem."""
    problems: Count | None = None
    """Problems of one round; all where left out."""
    rounds: Count = 1
    temperature: Positive = 1.0
    threshold: float | None = None
    """Reward from which a trajectory is used; success alone decides where left out."""
    top_k: Count | None = 2
    """Most trajectories used of one problem."""
    band: Shares = (0.0, 1.0)
    """Success rates of a problem between which its trajectories are used."""
    distinct: Flag = True
    """Use each distinct token sequence once."""
    max_tool_errors: Annotated[int, Field(ge=0)] | None = None
    """Most tool errors of a trajectory that is used."""
    min_gain: Annotated[float, Field(ge=0.0)] = 0.0
    """Gain of the share of problems with a success below which later rounds are left out."""
    epochs: Positive = 1.0
    batch: SupervisedBatch = SupervisedBatch(tokens=4096)
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    aggregation: Literal["token", "sequence"] = "token"

    @model_validator(mode="after")
    def _band_in_order(self) -> Self:
        if self.band[0] > self.band[1]:
            raise ValueError(f"found the band {list(self.band)}, expected the lower share first")
        return self


class GRPO(Spec):
    """Clipped policy gradient on group-relative advantages."""

    type: Literal["grpo"]
    group_size: Annotated[int, Field(ge=2)] = 8
    """Trajectories of one problem; needs at least 2."""
    problems_per_step: Count = 32
    steps: Count = 20
    temperature: Positive = 1.0
    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    clip_high: Positive = 0.28
    scale_rewards: Literal["group_std", "none"] = "group_std"
    aggregation: Literal["token", "sequence"] = "token"
    kl_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the k3 estimate of KL to the policy the stage started from, added to the loss."""
    updates_per_batch: Count = 1
    """Passes over each batch of rollouts."""
    truncated: Literal["mask", "score"] = "score"
    """Whether cut trajectories are left out of the loss or trained on with their reward."""
    max_truncated: Share = 0.9
    """Share of cut trajectories in a step from which the stage stops."""
    max_flat_steps: Count = 5
    """Steps in a row without a group that varies, from which the stage stops."""
    max_logprob_gap: Positive = 0.1
    """Mean |trainer - sampler| logprob of a fresh batch from which the stage stops."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)


Algorithm = Annotated[SFT | RFT | GRPO, Field(discriminator="type")]
