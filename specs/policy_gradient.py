"""Policy-gradient algorithms: what they share is declared once, in `PolicyGradient`, `Clipped` and `Correction`."""

from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from specs.base import Count, Flag, Positive, Share, Spec
from specs.optimizer import Optimizer

AtLeastTwo = Annotated[int, Field(ge=2)]
NotNegative = Annotated[float, Field(ge=0.0)]
AboveOne = Annotated[float, Field(gt=1.0)]
Band = Annotated[tuple[Positive, Positive], Field(strict=False)]
"""Two ratios, the lower first, written as a list; both belong to the band."""


def _in_order(band: tuple[float, float] | None, name: str) -> None:
    if band is not None and band[0] > band[1]:
        raise ValueError(f"{name}: found {list(band)}, expected the lower ratio first")


def _unread(spec: Spec, name: str, why: str) -> None:
    """Refuse a setting that another one makes idle; its default passes, as a stored spec has every field."""
    if getattr(spec, name) != type(spec).model_fields[name].default:
        raise ValueError(f"{name} is not read {why}")


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
    def _bands_in_order(self) -> Self:
        _in_order(self.band, "band")
        _in_order(self.reject_mean, "reject_mean")
        return self


class PolicyGradient(Spec):
    """What every policy-gradient algorithm declares."""

    group_size: AtLeastTwo = 8
    """Trajectories of one problem; needs at least 2 where they are compared with one another."""
    problems_per_step: Count = 32
    steps: Count = 20
    temperature: Positive = 1.0
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "token"
    """Mean over tokens; over trajectories of their token means, or their token sums; over turns; sum by a fixed budget."""
    token_budget: Count | None = None
    """Tokens of a trajectory that `aggregation: constant` divides by; the policy's `max_length` where left out."""
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
    truncated: Literal["mask", "score"] = "score"
    """Whether cut trajectories are left out of the loss or trained on with their reward."""
    max_truncated: Share = 0.9
    """Share of cut trajectories in a step from which the stage stops."""
    max_flat_steps: Count = 5
    """Steps in a row without anything to compare, from which the stage stops."""
    max_logprob_gap: Positive = 0.1
    """Mean |trainer - sampler| logprob of a fresh batch from which the stage stops."""
    max_missing_logprobs: Share = 0.001
    """Share of tokens whose sampler logprob is missing, from which the stage stops; up to there they do not train."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)

    @model_validator(mode="after")
    def _budget_is_read(self) -> Self:
        if self.token_budget is not None and self.aggregation != "constant":
            raise ValueError(
                f"token_budget is not read with aggregation: {self.aggregation}; only constant divides by it"
            )
        return self

    @model_validator(mode="after")
    def _kl_is_read(self) -> Self:
        if self.kl_coef == 0:
            _unread(self, "kl", "with kl_coef: 0; give kl_coef a weight or leave kl out")
        return self


class OnePass(Spec):
    """An algorithm without an importance ratio: a second pass over a batch would be biased."""

    @model_validator(mode="after")
    def _single_pass(self) -> Self:
        if getattr(self, "updates_per_batch", 1) != 1:
            raise ValueError("updates_per_batch needs an importance ratio; use 1, or grpo, gspo or cispo")
        return self


class Clipped(Spec):
    """The clipped surrogate: min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)."""

    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    clip_high: Positive = 0.28
    dual_clip: AboveOne | None = None
    """Where A < 0, the loss of a token is at most this many times -A (usual: 3); no such bound where left out."""


DECAY = 0.95


class REINFORCE(PolicyGradient, OnePass):
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


class RLOO(PolicyGradient, OnePass):
    """Policy gradient without a ratio, each trajectory against the mean of its group's others."""

    type: Literal["rloo"]
    kl: Literal["k1_in_reward", "k2", "k3", "k3_plus"] = "k1_in_reward"
    aggregation: Literal["token", "sequence", "sequence_sum", "turn", "constant"] = "sequence_sum"


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
            _unread(self, "std_floor", "with scale_rewards: none, which divides by nothing")
        return self


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
    def _bounds_in_order(self) -> Self:
        if self.ratio_low > self.ratio_high:
            raise ValueError(f"ratio_low: found {self.ratio_low:g}, expected at most ratio_high ({self.ratio_high:g})")
        return self


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
            _unread(self, "std_floor", "with scale_rewards: none, which divides by nothing")
        return self


class GiGPO(PolicyGradient, Clipped, TurnCredit):
    """Group in group: turns that start from the same state are compared by what they led to."""

    type: Literal["gigpo"]
    statistics: Literal["trajectories", "turns"] = "trajectories"
    """Whether a trajectory counts once in its group's mean, or once for each turn."""


class G2PO(PolicyGradient, Clipped, TurnCredit):
    """Graph of a group: turns are compared by the worth of the state that they lead to."""

    type: Literal["g2po"]
    success_value: Positive = 10.0
    """Worth of the end of a success; that of a failure is 0."""
    invalid_penalty: NotNegative = 0.1
    """Taken off a turn whose call could not be used, where others left the same state."""


class Critic(Spec):
    """A value model: a copy of the policy the stage starts from, with one number per token as its output."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    updates_per_batch: Count = 1
    """Passes of the critic over each batch."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """First steps of the stage in which the critic alone learns."""
    clip: Positive | None = 0.2
    """Values count as moved by at most this much in an update; no such bound where null."""


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
    def _lambda_is_read(self) -> Self:
        if self.length_adaptive is not None:
            _unread(self, "gae_lambda", "with length_adaptive, which stands in its place; write length_adaptive: null")
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


PolicyGradientAlgorithm = REINFORCE | RLOO | GRPO | DrGRPO | DAPO | GSPO | CISPO | GiGPO | G2PO | PPO | TurnPPO | SAO
POLICY_GRADIENTS = (
    "reinforce",
    "rloo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "gigpo",
    "g2po",
    "ppo",
    "turn_ppo",
    "sao",
)
"""The types of the members above."""


def policy_gradient_from(data: object) -> PolicyGradientAlgorithm:
    """Return the algorithm that plain data stand for."""
    union = Annotated[PolicyGradientAlgorithm, Field(discriminator="type")]
    return TypeAdapter[PolicyGradientAlgorithm](union).validate_python(data)
