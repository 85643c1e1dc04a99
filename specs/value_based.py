"""Policy gradients whose advantages come from a critic."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Positive, Share, Spec
from specs.optimizer import Optimizer
from specs.policy_gradient import Clipped, OnePass, PolicyGradient, unread


class Critic(Spec):
    """A value model: a copy of the policy the stage starts from, or the policy's own body, with one number per token."""

    backbone: Literal["own", "shared"] = "own"
    """A model of its own, or a further head of the policy, which learns in the policy's updates: no second model."""
    coef: Annotated[float, Field(gt=0.0)] = 0.5
    """Weight of the value loss beside the policy's, where they share a backbone."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    updates_per_batch: Count = 1
    """Passes of the critic over each batch."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """First steps of the stage in which the critic alone learns."""
    clip: Positive | None = 0.2
    """Values count as moved by at most this much in an update; no such bound where null."""

    @model_validator(mode="after")
    def _settings_of_the_other_form(self) -> Self:
        if self.backbone == "own":
            unread(self, "coef", "with backbone: own, where each of the two has its loss alone")
        else:
            for name in ("optimizer", "updates_per_batch"):
                unread(self, name, "with backbone: shared, where values learn in the policy's updates")
        return self


class ValueBased(Spec):
    """Advantages from a critic by generalised advantage estimation over the policy's own tokens."""

    critic: Critic = Critic()
    discount: Share = 1.0
    gae_lambda: Share = 0.95
    length_adaptive: Positive | None = None
    """a of lambda = 1 - 1 / (a x the trajectory's tokens), in the place of `gae_lambda`."""
    value_lambda: Share | None = None
    """Lambda of what the critic learns; that of the advantages where left out."""
    whiten: Flag = True
    """Shift and scale the step's advantages to a mean of 0 and a variance of 1."""
    turn_rewards: Flag = False
    """Count what a turn earned by itself there, and not at the end: its call, and scores that are means over turns."""

    @model_validator(mode="after")
    def _policy_learns_too(self) -> Self:
        steps = getattr(self, "steps", None)
        if steps is not None and self.critic.warmup_steps >= steps:
            raise ValueError(
                f"critic.warmup_steps: found {self.critic.warmup_steps}, expected less than steps ({steps})"
            )
        correction = getattr(self, "correction", None)
        if correction is not None and correction.reject_drifted is not None:
            raise ValueError(
                "correction.reject_drifted asks for a trajectory's advantage; a critic gives them by token"
            )
        return self

    @model_validator(mode="after")
    def _worth_of_the_policy(self) -> Self:
        if getattr(self, "best_of", 1) > 1:
            raise ValueError(
                "best_of: a critic would learn the worth of the search and not that of the policy; use grpo"
            )
        return self

    @model_validator(mode="after")
    def _no_group_is_silent(self) -> Self:
        replay = getattr(self, "replay", None)
        if replay is not None and replay.history is not None and replay.history.fill == "silent":
            raise ValueError(
                "replay.history.fill: silent fills up for groups that teach nothing; with a critic none does"
            )
        return self

    @model_validator(mode="after")
    def _whole_rewards_are_replayed(self) -> Self:
        replay = getattr(self, "replay", None)
        if self.turn_rewards and replay is not None and replay.history is not None:
            raise ValueError("turn_rewards: replay.history keeps the whole reward of a trajectory alone; leave one out")
        return self

    @model_validator(mode="after")
    def _lambda_is_read(self) -> Self:
        if self.length_adaptive is not None:
            unread(self, "gae_lambda", "with length_adaptive, which stands in its place; write length_adaptive: null")
        return self

    @model_validator(mode="after")
    def _kl_keeps_its_weight(self) -> Self:
        in_reward = getattr(self, "kl", None) == "k1_in_reward" and getattr(self, "kl_coef", 0.0) > 0
        if in_reward and self.whiten:
            raise ValueError(
                "kl: k1_in_reward is taken off advantages that whiten has scaled, so kl_coef would not be its weight; "
                "write kl: k2, k3 or k3_plus, or whiten: false"
            )
        return self


class PPO(PolicyGradient, Clipped, ValueBased):
    """Clipped policy gradient on advantages from a critic."""

    type: Literal["ppo"]
    group_size: Count = 4
    """Trajectories of one problem; 1 is enough."""
    clip_high: Positive = 0.2


class TurnPPO(PolicyGradient, Clipped, ValueBased):
    """PPO over turns: one value, one advantage and one ratio for each turn."""

    type: Literal["turn_ppo"]
    group_size: Count = 4
    """Trajectories of one problem; 1 is enough."""
    clip_high: Positive = 0.2
    ratio: Literal["geometric", "product"] = "geometric"
    """Mean of a turn's token ratios, or their product, which leaves any clip soon in a long turn."""
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "turn"
    discount: Share = 0.99
    gae_lambda: Share = 0.9
    length_adaptive: Positive | None = None
    """a of lambda = 1 - 1 / (a x the trajectory's turns), in the place of `gae_lambda`."""


class SAO(PolicyGradient, ValueBased, OnePass):
    """One trajectory a problem, advantages from a critic, tokens that have drifted either way without a gradient."""

    type: Literal["sao"]
    group_size: Count = 1
    """Trajectories of one problem; 1 is enough."""
    drift_low: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3
    """A token counts only where pi / sampler is above 1 less this."""
    drift_high: Positive = 5.0
    """A token counts only where pi / sampler is below 1 plus this."""
    critic: Critic = Critic(updates_per_batch=2)
    length_adaptive: Positive | None = 1.5
    """a of lambda = 1 - 1 / (a x the trajectory's tokens), in the place of `gae_lambda`."""
    value_lambda: Share | None = 1.0
    """Lambda of what the critic learns; that of the advantages where left out."""
    whiten: Flag = False
    """Shift and scale the step's advantages to a mean of 0 and a variance of 1."""

    @model_validator(mode="after")
    def _ratio_is_to_the_sampler(self) -> Self:
        if self.correction is not None:
            raise ValueError(
                "correction would be applied twice: the ratio of sao is pi / sampler already, so the engines' difference "
                "is in it, and drift_low and drift_high bound it; leave correction out"
            )
        return self
