"""Algorithms that learn from pairs of a preferred and a rejected trajectory."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Positive, Spec
from specs.bounds import CutBound
from specs.optimizer import Optimizer


class Pairing(CutBound):
    """How the policy's own rollouts become pairs of a preferred and a rejected trajectory of one problem."""

    samples: Annotated[int, Field(ge=2)] = 8
    """Trajectories drawn for each problem."""
    problems: Count | None = None
    """Problems that are tried; all where left out."""
    temperature: Positive = 1.0
    choose: Literal["best_worst", "all", "alone"] = "best_worst"
    """One pair of a problem, its best and its worst; or all, each problem counting the same.

    `alone` (kto): no pairs, but each trajectory for itself, wanted where it succeeded; both sides weigh the same together.
    """
    rejected: Literal["failed", "lower"] = "failed"
    """Which side may be rejected: failures alone, or any trajectory of lower reward. What is chosen has succeeded."""
    margin: Annotated[float, Field(ge=0.0)] = 0.0
    """Difference of rewards above which two trajectories are a pair."""
    at_least: Annotated[int, Field(ge=0)] = 8
    """Pairs (`alone`: trajectories of either side) below which the stage stops.

    With 0 a stage that has none hands its policy on as it is.
    """

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        if self.choose == "alone":
            for name in ("rejected", "margin"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is not read with choose: alone, which makes no pairs")
        return self


class PairAlgorithm(Spec):
    """What every algorithm on pairs has."""

    pairing: Pairing = Pairing()
    epochs: Positive = 1.0
    pairs_per_step: Count = 16
    """Pairs of one step; with `choose: alone` a step has twice as many trajectories."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)

    @model_validator(mode="after")
    def _pairs_are_made(self) -> Self:
        if self.pairing.choose == "alone" and getattr(self, "type", None) != "kto":
            raise ValueError("pairing.choose: alone makes no pairs, which this algorithm needs; use kto, or all")
        return self


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
    """Kahneman-Tversky optimisation: wanted and unwanted trajectories one by one, each against the policy's drift."""

    type: Literal["kto"]
    beta: Positive = 0.1
    desirable_weight: Positive = 1.0
    undesirable_weight: Positive = 1.0


Preference = DPO | IPO | ORPO | SimPO | KTO
"""The algorithms that learn from pairs."""
