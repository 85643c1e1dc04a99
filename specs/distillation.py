"""Learning from a teacher's probabilities: of the whole vocabulary, of the likeliest tokens, or of the policy's own."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Name, Positive, Share, Spec
from specs.bounds import Band, NotNegative, RolloutBounds, in_order, unread
from specs.optimizer import Optimizer

Direction = Literal["reverse", "forward", "jsd", "symmetric"]
"""KL(policy || teacher), KL(teacher || policy), the generalised Jensen-Shannon divergence, or the mean of the two KL."""


class Divergence(Spec):
    """A divergence between the distributions of policy and teacher at each token."""

    direction: Literal["auto", "reverse", "forward", "jsd", "symmetric"] = "auto"
    """`auto`: reverse where the policy wrote the tokens, forward where they are demonstrations."""
    beta: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """The teacher's share in the mixture of `jsd`."""
    loss_temperature: Positive = 1.0
    """Both logits are divided by it; the sampling temperature is another setting."""
    floor: Annotated[float, Field(lt=0.0)] = -30.0
    """Least logprob of the teacher that counts, in `reverse` and `symmetric`."""
    most: Positive | None = None
    """Nats from which a token's divergence has no gradient; no such bound where left out."""

    @model_validator(mode="after")
    def _beta_is_read(self) -> Self:
        if self.direction != "jsd":
            unread(self, "beta", f"with direction: {self.direction}")
        if self.direction in ("forward", "jsd"):
            unread(self, "floor", f"with direction: {self.direction}, which no missing probability makes infinite")
        return self


class FullVocabulary(Divergence):
    """Over the whole vocabulary: exact."""

    kind: Literal["full"] = "full"


class TopTokens(Divergence):
    """Over the likeliest tokens and one bucket for the rest: a lower bound of the divergence over the whole vocabulary."""

    kind: Literal["top_k"]
    size: Count = 32
    """Tokens that are told apart."""
    support: Literal["auto", "policy", "teacher"] = "auto"
    """Whose likeliest tokens; `auto`: the teacher's in `forward`, else the policy's."""
    rest: Literal["bucket", "none", "renormalize"] = "bucket"
    """What stands for all other tokens: one outcome, nothing (biased, and may be negative), or the listed ones made to sum
    to 1 (a policy that hardly ever says them can still reach 0)."""


class SampledTokens(Spec):
    """On the tokens that the policy sampled alone; the only one for a teacher with another tokenizer."""

    kind: Literal["sampled"]
    estimator: Literal["k1", "k2"] = "k1"
    """`k1`: teacher - policy logprob as the advantage of a policy gradient. `k2`: half its square as the loss."""
    ratio_band: Band | None = (0.5, 2.0)
    """Tokens whose ratio policy / sampler is outside have no gradient; `null`: all have. Of `k1`."""
    most: Positive = 10.0
    """Largest advantage either way, in nats."""
    discount: Share = 0.0
    """Share of the next token's advantage that is added to a token's own, and so on; 0: each token for itself. With
    `spread: last` of the next piece's, so that the difference on a piece counts once."""
    early_coef: NotNegative = 0.0
    """Extra weight of early tokens: 1 + this x the share of |advantage| that is still to come."""
    spread: Literal["equal", "broadcast", "teacher_share", "last", "causal"] = "equal"
    """How the difference on a piece of text that several tokens share is given to them (teachers with another tokenizer).
    `last` earns it at the piece's end, which counts as much for each token before: `broadcast`, but for `discount`."""

    @model_validator(mode="after")
    def _square_stands_alone(self) -> Self:
        if self.estimator == "k2":
            for name in ("ratio_band", "discount", "early_coef", "spread"):
                unread(self, name, "with estimator: k2")
        in_order(self.ratio_band, "ratio_band")
        return self


Over = Annotated[FullVocabulary | TopTokens | SampledTokens, Field(discriminator="kind")]


class StateWeights(Spec):
    """Weights of turns in trajectories that failed: what follows an error is no longer what the teacher knows about."""

    wrong: Positive = 2.0
    """Weight of the first turn whose call was invalid or failed; earlier turns have 1."""
    later: Share = 0.5
    """What a later turn's weight is multiplied by for each turn since then."""
    least: Share = 0.1
    recovery: Positive = 2.0
    """Weight of the first turn after it whose call succeeded."""


class Distillation(Spec):
    """How a teacher's probabilities become a loss on the policy's tokens."""

    teachers: Annotated[dict[Name, Positive], Field(min_length=1)] | None = None
    """Teachers of the roster and their weights; the program's routing decides by problem where left out."""
    combine: Literal["mixture", "log_linear", "sum"] = "mixture"
    """Several teachers: the weighted mean of their probabilities, their weighted product, or a loss for each."""
    by_confidence: Flag = False
    """Multiply each teacher's weight by 1 - its entropy / log(vocabulary) at the token."""
    over: Over = FullVocabulary()
    token_weights: Literal["same", "reward"] = "same"
    """All trajectories alike, or each by its reward (a negative one is 0)."""
    states: StateWeights | None = None
    """Weights of turns around an error; all turns count the same where left out."""

    @model_validator(mode="after")
    def _confidence_needs_all(self) -> Self:
        if self.teachers is not None and len(self.teachers) == 1:
            for name in ("combine", "by_confidence"):
                unread(self, name, "with one teacher; name several in teachers, or leave it out")
        if self.by_confidence and isinstance(self.over, SampledTokens):
            raise ValueError("by_confidence needs the whole distribution; write over: {kind: full} or {kind: top_k}")
        return self


class TeacherTerm(Distillation):
    """Distillation beside a policy gradient: the teacher is a prior, the verifiers alone judge."""

    coef: Positive = 0.1
    """Weight of the term; its tokens have a denominator of their own."""
    coef_end: NotNegative | None = None
    """Weight at the last step, reached in a straight line; constant where left out."""
    full_length: Count | None = None
    """Tokens of a trajectory up to which it counts in full; a longer one counts by this / its tokens."""
    min_coverage: Share = 0.5
    """Share of a step's policy tokens that a teacher must say something about; below it the stage stops."""


class OPD(Distillation, RolloutBounds):
    """On-policy distillation: the policy acts, and at each of its tokens it is drawn to the teacher's distribution."""

    type: Literal["opd"]
    version: ClassVar[int] = 1
    group_size: Count = 2
    """Trajectories of one problem."""
    problems_per_step: Count = 32
    steps: Count = 20
    temperature: Positive = 1.0
    aggregation: Literal["token", "sequence"] = "token"
    """Mean over tokens, or over trajectories of their token means."""
    updates_per_batch: Count = 1
    """Passes over each batch of rollouts."""
    outcome_coef: NotNegative = 0.0
    """Weight of the verifiers' group-relative advantage that is added to a token's own; needs `over: {kind: sampled}`."""
    demonstrations: Share = 0.0
    """Share of a step's trajectories that are demonstrations of the stage's data instead of rollouts."""
    truncated: Literal["mask", "score"] = "score"
    """Whether cut trajectories are left out of the loss."""
    min_coverage: Share = 0.5
    """Share of the policy's tokens that a teacher must say something about; below it the stage stops.

    With 0 a stage without an update hands the policy on as it is.
    """
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)

    @model_validator(mode="after")
    def _outcome_is_an_advantage(self) -> Self:
        if self.outcome_coef and not (isinstance(self.over, SampledTokens) and self.over.estimator == "k1"):
            raise ValueError(
                "outcome_coef adds to the advantage of a sampled token; write over: {kind: sampled}, or a policy "
                "gradient with distill: {over: {kind: full}}"
            )
        if self.outcome_coef and self.group_size < 2:
            raise ValueError("outcome_coef compares within a group; group_size needs at least 2")
        if self.demonstrations and isinstance(self.over, SampledTokens):
            raise ValueError(
                "demonstrations were not sampled by the policy, so that over: {kind: sampled} says nothing about them; "
                "write over: {kind: full} or {kind: top_k}, or demonstrations: 0"
            )
        return self
