"""Policy gradients whose advantages compare the trajectories of a group or a step with one another, but for GRPO."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Positive, Share, Spec
from specs.bounds import NotNegative
from specs.policy_gradient import Clipped, PolicyGradient, Unweighed

DECAY = 0.95


class REINFORCE(PolicyGradient, Unweighed):
    """Policy gradient without a ratio, against a baseline."""

    type: Literal["reinforce"]
    group_size: Count = 8
    """Trajectories of one problem; 1 is enough for a baseline over the step."""
    baseline: Literal["batch_mean", "running_mean", "length_weighted", "second_best"] = "batch_mean"
    """The step's mean reward, the running mean of earlier steps, the group's length-weighted mean (OPO), or second best.

    Against the second best, only a group's best trajectory is trained (best-only pass@k).
    """
    decay: Share = DECAY
    """Share of the running mean that a step keeps."""
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "sequence_sum"

    @model_validator(mode="after")
    def _baseline_fits(self) -> Self:
        if self.group_size < 2 and self.baseline in ("length_weighted", "second_best"):
            raise ValueError(f"baseline: {self.baseline} compares within a group; group_size needs at least 2")
        if self.decay != DECAY and self.baseline != "running_mean":
            raise ValueError(f"decay is not read with baseline: {self.baseline}; only running_mean has one")
        return self


class RLOO(PolicyGradient, Unweighed):
    """Policy gradient without a ratio, each trajectory against the mean of its group's others."""

    type: Literal["rloo"]
    kl: Literal["k1_in_reward", "k2", "k3", "k3_plus"] = "k1_in_reward"
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "sequence_sum"


class DrGRPO(PolicyGradient, Clipped):
    """Clipped policy gradient on group-centred rewards, without any mean over a length."""

    type: Literal["dr_grpo"]
    clip_high: Positive = 0.2
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "constant"


class Resample(Spec):
    """Dynamic sampling: further problems in the place of groups that do not vary, so often and no more."""

    max_rounds: Count = 3
    """Rounds of rollouts of a step, the first included."""
    when_short: Literal["train", "stop"] = "train"
    """Train on the groups there are, counted as short, or stop the stage."""


class SoftOverlong(Spec):
    """A penalty for long trajectories: 0 up to `limit - buffer` tokens of the policy, then falling to -1 at `limit`."""

    limit: Count
    buffer: Count

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.buffer > self.limit:
            raise ValueError(f"buffer: found {self.buffer}, expected at most limit ({self.limit})")
        return self


class DAPO(PolicyGradient, Clipped):
    """GRPO with clip-higher, token mean, dynamic sampling and no reward from cut trajectories."""

    type: Literal["dapo"]
    resample: Resample | None = Resample()
    """No dynamic sampling where null."""
    truncated: Literal["mask", "score"] = "mask"
    overlong: SoftOverlong | None = None
    """Needs `truncated: score`: one of the two answers to long trajectories, not both."""
    std_floor: Positive = 1e-6
    """Added to the standard deviation."""

    @model_validator(mode="after")
    def _one_answer_to_length(self) -> Self:
        if self.overlong is not None and self.truncated == "mask":
            raise ValueError("overlong and truncated: mask are two answers to the same thing; write truncated: score")
        return self


class GSPO(PolicyGradient, Clipped):
    """Clipped policy gradient on the geometric mean ratio of a whole trajectory."""

    type: Literal["gspo"]
    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 3e-4
    clip_high: Positive = 4e-4
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "sequence"
    std_floor: Positive = 1e-6
    """Added to the standard deviation."""


class CISPO(PolicyGradient):
    """Policy gradient whose importance ratio is a bounded constant weight: no token is without a gradient."""

    type: Literal["cispo"]
    ratio_low: NotNegative = 0.0
    """Least weight, absolute."""
    ratio_high: Positive = 5.0
    """Most weight, absolute."""
    std_floor: Positive = 1e-6
    """Added to the standard deviation."""

    @model_validator(mode="after")
    def _boundsin_order(self) -> Self:
        if self.ratio_low > self.ratio_high:
            raise ValueError(f"ratio_low: found {self.ratio_low:g}, expected at most ratio_high ({self.ratio_high:g})")
        return self
