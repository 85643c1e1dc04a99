"""What policy-gradient algorithms share, declared once: `PolicyGradient`, `Clipped` and `Correction`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Positive, Spec
from specs.bounds import AboveOne, Band, GroupSize, NotNegative, RolloutBounds, in_order, unread
from specs.optimizer import Optimizer
from specs.unions import Imported

if TYPE_CHECKING:
    from specs.distillation import TeacherTerm
    from specs.replay import Curriculum, Replay
else:
    TeacherTerm = Annotated[Any, Imported("specs.distillation:TeacherTerm")]
    Curriculum = Annotated[Any, Imported("specs.replay:Curriculum")]
    Replay = Annotated[Any, Imported("specs.replay:Replay")]


class Correction(Spec):
    """Constant weights for the difference between the trainer's logprobs before the update and the sampler's.

    The ratio is trainer / sampler. A weight of zero keeps its token in the mean; `reject_*` takes the whole trajectory
    out of it. Costs one more forward pass a step.
    """

    ratio: Literal["token", "sequence"] = "token"
    """Weigh each token by its own ratio, or all tokens of a trajectory by the product of its ratios."""
    outside: Literal["truncate", "zero"] = "truncate"
    """Ratios outside `band`: cut to its upper end (TIS; the lower end is not used), or a weight of zero (MIS, IcePop)."""
    band: Band = (0.5, 2.0)
    normalize: Flag = False
    """Divide the weights by their mean over the step's tokens."""
    reject_mean: Band | None = None
    """Reject a trajectory whose geometric mean ratio is outside."""
    reject_below: Positive | None = None
    """Reject a trajectory with a token whose ratio is below this (a veto, for example 1e-4)."""
    reject_drifted: Positive | None = None
    """Reject a trajectory with a negative advantage whose tokens have lost more than this many nats on average."""

    @model_validator(mode="after")
    def _bandsin_order(self) -> Self:
        in_order(self.band, "band")
        in_order(self.reject_mean, "reject_mean")
        return self


class PolicyGradient(RolloutBounds):
    """What every policy-gradient algorithm declares."""

    group_size: GroupSize = 8
    """Trajectories of one problem; needs at least 2 where they are compared with one another."""
    best_of: Count = 1
    """Each of them is the best, by reward, of so many: a search, whose tokens are no samples of the policy."""
    problems_per_step: Count = 32
    steps: Count = 20
    temperature: Positive = 1.0
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "token"
    """Mean over tokens; over trajectories of their token means, or their token sums; over turns; sum by a fixed budget."""
    token_budget: Count | None = None
    """Tokens of a trajectory that `aggregation: constant` divides by; the policy's `max_length` where left out."""
    clip_rewards: Positive | None = None
    """Rewards further than this many of their group's standard deviations from its mean are cut there (2 to 3 is usual)."""
    kl_coef: NotNegative = 0.0
    """Weight of KL to the policy the stage started from."""
    kl: Literal["k1_in_reward", "k2", "k3", "k3_plus"] = "k3_plus"
    """Estimator of KL: k1 taken off the advantages, or k2, k3 or k3 with the gradient of k2 in the loss.

    k2 and k3_plus have the gradient of KL(policy || start); k3 (as GRPO was published) that of KL(start || policy).
    """
    entropy_coef: float = 0.0
    """Weight of the entropy that is taken off the loss."""
    updates_per_batch: Count = 1
    """Passes over each batch of rollouts."""
    correction: Correction | None = None
    """What to do about a sampler whose logprobs differ from the trainer's; nothing where left out."""
    distill: TeacherTerm | None = None
    """A teacher's probabilities beside the reward, as a term of their own; none where left out."""
    replay: Replay | None = None
    """What trains beside the fresh rollouts; nothing where left out."""
    curriculum: Curriculum | None = None
    """Which problems are rolled out: those that teach; shuffled passes over all where left out."""
    adversarial: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Share of each step's problems that have the tag `adversarial`; as they come where left out."""
    truncated: Literal["mask", "score"] = "score"
    """Whether cut trajectories are left out of the loss or trained on with their reward."""
    max_flat_steps: Count | None = 5
    """Steps in a row from which the stage stops: nothing to compare and nothing else that teaches, or no update.

    `null`: it never does, and a stage without an update hands the policy on as it is.
    """
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)

    @model_validator(mode="after")
    def _budget_is_read(self) -> Self:
        if self.token_budget is not None and self.aggregation != "constant":
            raise ValueError(
                f"token_budget is not read with aggregation: {self.aggregation}; only constant divides by it"
            )
        return self

    @model_validator(mode="after")
    def _rewards_can_be_that_far(self) -> Self:
        most = (self.group_size - 1) / self.group_size**0.5
        if self.clip_rewards is not None and self.clip_rewards >= most:
            raise ValueError(
                f"clip_rewards: found {self.clip_rewards:g}, which never cuts: in a group of {self.group_size} no reward is "
                f"further than {most:.3g} standard deviations from the mean; lower it or raise group_size"
            )
        return self

    @model_validator(mode="after")
    def _kl_is_read(self) -> Self:
        if self.kl_coef == 0:
            unread(self, "kl", "with kl_coef: 0; give kl_coef a weight or leave kl out")
        return self


class OnePass(Spec):
    """An algorithm without an importance ratio: a second pass over a batch would be biased."""

    @model_validator(mode="after")
    def _single_pass(self) -> Self:
        if getattr(self, "updates_per_batch", 1) != 1:
            raise ValueError("updates_per_batch needs an importance ratio; use 1, or grpo, gspo or cispo")
        return self


class Unweighed(OnePass):
    """An algorithm whose trajectories must be of the policy that is updated, or be weighed by a correction."""

    @model_validator(mode="after")
    def _history_is_weighed(self) -> Self:
        replay: Replay | None = getattr(self, "replay", None)
        if replay is not None and replay.history is not None and getattr(self, "correction", None) is None:
            raise ValueError(
                "replay.history needs an importance ratio: trajectories of earlier steps are of another policy; "
                "write correction: {}, or use grpo, gspo or cispo"
            )
        return self

    @model_validator(mode="after")
    def _samples_are_the_policys(self) -> Self:
        if getattr(self, "best_of", 1) > 1:
            raise ValueError(
                "best_of needs a bounded importance ratio, as what a search chose is no sample of the policy; "
                "use grpo, gspo or cispo"
            )
        return self


class Clipped(Spec):
    """The clipped surrogate: min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)."""

    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    clip_high: Positive = 0.28
    dual_clip: AboveOne | None = None
    """Where A < 0, the loss of a token is at most this many times -A (usual: 3); no such bound where left out."""
