"""Algorithms: what a stage does to the policy. Each file of `tasks/learning/algorithms` reads its own class."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Positive, Shares, Spec
from specs.optimizer import Optimizer
from specs.policy_gradient import CISPO, DAPO, G2PO, GRPO, GSPO, PPO, REINFORCE, RLOO, SAO, DrGRPO, GiGPO, TurnPPO


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


class RewardWeighted(Spec):
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


class Pairing(Spec):
    """How the policy's own rollouts become pairs of a preferred and a rejected trajectory of one problem."""

    samples: Annotated[int, Field(ge=2)] = 8
    """Trajectories drawn for each problem."""
    problems: Count | None = None
    """Problems that are tried; all where left out."""
    temperature: Positive = 1.0
    choose: Literal["best_worst", "all"] = "best_worst"
    """One pair of a problem, its best and its worst; or all, each problem counting the same."""
    rejected: Literal["failed", "lower"] = "failed"
    """Which side may be rejected: failures alone, or any trajectory of lower reward. What is chosen has succeeded."""
    margin: Annotated[float, Field(ge=0.0)] = 0.0
    """Difference of rewards above which two trajectories are a pair."""
    at_least: Annotated[int, Field(ge=0)] = 8
    """Pairs below which the stage stops; with 0 a stage without a pair hands its policy on as it is."""


class PairAlgorithm(Spec):
    """What every algorithm on pairs has."""

    pairing: Pairing = Pairing()
    epochs: Positive = 1.0
    pairs_per_step: Count = 16
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)


class DPO(PairAlgorithm):
    """Direct preference optimisation: the logistic loss of how much more the policy prefers what was chosen."""

    type: Literal["dpo"]
    beta: Positive = 0.1
    """With `lengths: mean` larger values are usual, about 5."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """Share of pairs that are taken to be the wrong way round."""
    lengths: Literal["sum", "mean"] = "sum"
    """Log-ratios summed over a trajectory's tokens, or their mean (length-normalised)."""
    nll_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the chosen trajectory's mean negative log-likelihood, added to the loss."""


class IPO(PairAlgorithm):
    """Identity preference optimisation: the preference is drawn to a margin and not beyond."""

    type: Literal["ipo"]
    tau: Positive = 0.1
    """The margin is 1 / (2 tau)."""
    lengths: Literal["sum", "mean"] = "mean"
    """Log-ratios summed over a trajectory's tokens, or their mean."""


class ORPO(PairAlgorithm):
    """Odds-ratio preference optimisation: maximum likelihood of what was chosen plus its odds; no reference."""

    type: Literal["orpo"]
    odds_coef: Positive = 0.1
    """Weight of the term on the odds."""


class SimPO(PairAlgorithm):
    """Simple preference optimisation: mean logprobs with a margin; no reference."""

    type: Literal["simpo"]
    beta: Positive = 2.5
    gamma_over_beta: Annotated[float, Field(ge=0.0)] = 0.55
    """Margin between the mean logprobs of the two sides."""


class KTO(PairAlgorithm):
    """Kahneman-Tversky optimisation: both sides of the pairs one by one, each against the policy's drift."""

    type: Literal["kto"]
    beta: Positive = 0.1
    desirable_weight: Positive = 1.0
    undesirable_weight: Positive = 1.0


Preference = DPO | IPO | ORPO | SimPO | KTO
"""The algorithms that learn from pairs."""


Algorithm = Annotated[
    SFT | RFT | RewardWeighted
    | DPO | IPO | ORPO | SimPO | KTO
    | REINFORCE | RLOO | GRPO | DrGRPO | DAPO | GSPO | CISPO | GiGPO | G2PO | PPO | TurnPPO | SAO,
    Field(discriminator="type"),
]  # fmt: skip
