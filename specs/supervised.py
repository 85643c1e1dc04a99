"""Supervised algorithms: demonstrations, and the policy's own trajectories by success or reward."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Positive, Share, Shares, Spec
from specs.bounds import CutBound, unread
from specs.optimizer import Optimizer


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
    shown: Share = 0.0
    """Share of the demonstrations before which their own solution stands, as a privileged self is shown one: a policy
    from nothing learns there to make use of it."""


class Diversity(Spec):
    """Which trajectories of a problem are too alike to be used both; the better one is."""

    calls: Flag = False
    """Those that make the same calls, by name and arguments, whatever else they write; those without a call are not compared."""
    max_overlap: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Those that have more than this share of their n-grams in common (Jaccard, over the policy's tokens)."""
    ngram: Count = 3
    """Tokens of an n-gram."""

    @model_validator(mode="after")
    def _compares_something(self) -> Self:
        if not self.calls and self.max_overlap is None:
            raise ValueError("expected calls: true, max_overlap or both")
        if self.max_overlap is None:
            unread(self, "ngram", "without max_overlap")
        return self


class RFT(CutBound):
    """Rejection sampling: train on the policy's own verified trajectories."""

    type: Literal["rft"]
    samples: Count = 4
    """Trajectories drawn for each problem."""
    problems: Count | None = None
    """Problems of one round; all where left out."""
    rounds: Count = 1
    temperature: Positive = 1.0
    require_success: Flag = True
    """Use successes alone. Off in smoke runs only, whose policy may solve nothing: a failure is no example."""
    threshold: float | None = None
    """Least reward of a success that is used; every success is where left out."""
    top_k: Count | None = 2
    """Most trajectories used of one problem."""
    band: Shares = (0.0, 1.0)
    """Success rates of a problem between which its trajectories are used."""
    distinct: Flag = True
    """Use each distinct token sequence once."""
    diversity: Diversity | None = None
    """Use no two of a problem that are too alike; only equal token sequences are where left out."""
    max_tool_errors: Annotated[int, Field(ge=0)] | None = None
    """Most tool errors of a trajectory that is used."""
    min_gain: Annotated[float, Field(ge=0.0)] = 0.0
    """Gain of the share of problems with a success, from round to round, below which later rounds are left out: where the
    upper end of its 95 % interval is. All rounds draw the same problems, and are compared problem by problem."""
    epochs: Positive = 1.0
    batch: SupervisedBatch = SupervisedBatch(tokens=4096)
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    aggregation: Literal["token", "sequence"] = "token"

    @model_validator(mode="after")
    def _band_in_order(self) -> Self:
        if self.band[0] > self.band[1]:
            raise ValueError(f"found the band {list(self.band)}, expected the lower share first")
        return self


class RewardWeighted(CutBound):
    """Maximum likelihood of the policy's own trajectories, each weighted by its reward."""

    type: Literal["reward_weighted"]
    samples: Annotated[int, Field(ge=2)] = 8
    """Trajectories drawn for each problem."""
    problems: Count | None = None
    """Problems that are tried; all where left out."""
    temperature: Positive = 1.0
    reward_temperature: Positive = 0.5
    """T of the weights softmax(R / T): small keeps the best alone, large weighs all alike."""
    among: Literal["problem", "all"] = "problem"
    """Rewards are compared within a problem, each problem counting the same; or all together."""
    max_weight: Annotated[float, Field(gt=1.0)] = 20.0
    """Largest weight of a trajectory, in multiples of the mean one."""
    require_success: Flag = True
    """Leave out problems that no trajectory solved."""
    denominator: Literal["weighted_tokens", "sequences", "tokens"] = "weighted_tokens"
    """What the sum is divided by: weighted tokens (free of scale), weights alone (long ones count more), or tokens."""
    epochs: Positive = 1.0
    batch: SupervisedBatch = SupervisedBatch(tokens=4096)
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
