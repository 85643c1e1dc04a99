"""Self-teaching: a policy gradient that a frozen or privileged self helps, token by token."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Name, Positive, SetName, Share, Spec
from specs.policy_gradient import Clipped, NotNegative, PolicyGradient, unread
from specs.replay import Curriculum

Form = Literal["success_distill", "redistribute", "gated"]


class Privileged(Spec):
    """What the teaching self is shown beside the problem; the policy itself never sees it."""

    shows: list[Literal["sibling", "feedback", "reference"]] = ["sibling"]
    """What its context holds, the first that there is: a success of the same group that is not the row's own, the
    verifiers' evidence, or the environment's own solution. Empty: the earlier self alone teaches."""
    max_tokens: Count = 96
    """Longest text that is shown; a longer one is not cut but left out, and counted."""
    sync_every: Count = 4
    """Steps after which the teaching copy takes over the policy's weights; in between it is frozen."""


class Redistribute(Spec):
    """RLSD: the teacher moves an advantage between the tokens of its trajectory; its sign stays the verifier's."""

    mix: Share = 0.5
    """Share of the advantage that is redistributed at the first step."""
    decay_steps: Count = 50
    """Steps over which that share falls to nothing."""
    clip: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """A token's weight stays within 1 minus and 1 plus this."""


class Gated(Spec):
    """SDAR: the likelihood of the policy's own tokens, each by how much more the teacher likes it."""

    coef: Positive = 0.01
    sharpness: Positive = 5.0
    """The gate is sigmoid(sharpness x (teacher's logprob - policy's logprob))."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the coefficient rises from nothing."""


class SuccessDistill(Spec):
    """Verified successes of a frozen self teach the policy, beside the policy gradient on its own rollouts."""

    coef: Positive = 0.1
    """Weight of the distillation, which has a denominator of its own."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the coefficient rises from nothing."""
    tokens: Literal["selected", "top_k", "tool_call", "action"] = "selected"
    """Which tokens learn: those that the policy is least sure of; all of them, from the frozen self's likeliest tokens;
    the names and argument values of tool calls; or whole turns that hold a usable call."""
    share: Share = 0.5
    """Share of the tokens that `selected` takes, by the policy's entropy."""
    top_k: Count = 32
    """Tokens of the frozen self's distribution that `top_k` holds; what is left is one bucket."""
    shortness: Annotated[float, Field(ge=1.0)] = 1.2
    """Factor of a success that is shorter than its problem type's usual one."""
    exploration: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3
    """Share of the step's problems that the policy itself tries; they alone carry the policy gradient."""
    final_temperature: Positive | None = None
    """Temperature of the policy's own tries at the last step, reached linearly; the same throughout where left out."""
    min_reward: float | None = None
    """Reward from which a verified success is taught; any where left out."""

    @model_validator(mode="after")
    def _choice_is_read(self) -> Self:
        if self.tokens != "selected":
            unread(self, "share", f"with tokens: {self.tokens}; only selected takes a share")
        if self.tokens != "top_k":
            unread(self, "top_k", f"with tokens: {self.tokens}; only top_k reads a distribution")
        return self


class Snapshot(Spec):
    """The frozen self, and when the policy takes its place: by promotion, never by itself."""

    every: Count = 5
    """Steps after which a promotion is considered."""
    min_gain: float = 0.0
    """The policy's mean success since then must exceed the snapshot's by at least this."""


class CollapseGuard(Spec):
    """Rules that stop a self-taught stage before it only repeats itself."""

    min_entropy: NotNegative = 0.0
    """Mean entropy of a token, in nats, below which a step counts as collapsed; 0 asks for nothing."""
    max_repeated: Share = 0.98
    """Share of trajectories that repeat another of their group, from which a step counts as collapsed."""
    max_drop: Share = 0.3
    """Fall of success below the best mean of `patience` steps that counts as collapsed."""
    patience: Count = 5
    """Collapsed steps in a row after which the stage stops; also the steps that success is averaged over."""
    cut_first: Flag = True
    """Set the self-teaching coefficient to 0 at the first collapsed step after a fall of success, before it comes to a stop."""


class Growth(Spec):
    """New problems of the environment's generator, harder ones as the policy succeeds; a level is a number of calls.

    Of the open levels those come up most that are sometimes solved, as problems do by the curriculum's band and floor. A
    problem that an evaluation or regression set gives away is never taken, by the rule of `apart`.
    """

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of a step's problems that are made anew; the others come from the stage's data."""
    calls: Annotated[list[Count], Field(min_length=1)] = [2, 3, 4, 5]
    """Calls of the shortest solution at each level, the easiest first; that one is open from the start."""
    open_above: Share = 0.6
    """Success rate of the hardest open level above which the next one opens."""
    least: Count = 32
    """Rollouts of that level before it may."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if self.calls != sorted(set(self.calls)):
            raise ValueError(f"calls: found {self.calls}, expected them to rise")
        return self


class Learner(Spec):
    """One of several policies; what is left out is as the stage says. Each has a seed of its own."""

    temperature: Positive | None = None
    learning_rate: Positive | None = None
    exploration: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """In place of `success_distill.exploration`."""


class Learners(Spec):
    """Several policies that start alike, evolve in turns, and share what each of them has verified; the best goes on.

    After each turn the verified rollouts of all of them are the experience of the next. A turn begins as a stage does: with a
    new optimiser and schedules, what `curriculum` and `growth` know, the frozen self, and the policy that `kl_coef` is about.
    """

    each: Annotated[list[Learner], Field(min_length=2)] = [Learner(), Learner()]
    """What differs between them; `{}`: nothing but the seed."""
    turns: Annotated[int, Field(ge=2)] = 2
    """Turns of each; they share the stage's `steps` alike."""
    choose_on: SetName
    """Evaluation set on which they are compared after the last turn; no gate may ask it."""


class SelfTaught(PolicyGradient, Clipped):
    """What the self-teaching algorithms share: GRPO's clipped surrogate, and one of three forms of self-teaching."""

    form: Form = "success_distill"
    """Verified successes of a frozen self; or as published: redistribute (RLSD), gated (SDAR)."""
    privileged: Privileged = Privileged()
    """Read by redistribute and gated."""
    redistribute: Redistribute = Redistribute()
    gated: Gated = Gated()
    success_distill: SuccessDistill = SuccessDistill()
    snapshot: Snapshot = Snapshot()
    """Read by success_distill."""
    guard: CollapseGuard = CollapseGuard()
    std_floor: Positive = 1e-6
    """Added to the standard deviation of a group's rewards."""

    @model_validator(mode="after")
    def _form_reads_it(self) -> Self:
        own = {"success_distill": ("success_distill", "snapshot"), "redistribute": ("redistribute", "privileged")}
        own["gated"] = ("gated", "privileged")
        for name in ("redistribute", "gated", "success_distill", "snapshot", "privileged"):
            if name not in own[self.form]:
                unread(self, name, f"with form: {self.form}; it reads {' and '.join(own[self.form])}")
        return self


class RLSD(SelfTaught):
    """Reinforcement learning from verified rewards with self-distillation, at every step."""

    type: Literal["rlsd"]


class SelfDistilled(SelfTaught):
    """Iterative self-distillation: a self that is frozen between promotions teaches by its verified successes."""

    type: Literal["self_distilled"]
    snapshot: Snapshot = Snapshot(every=10)
    """Read by success_distill."""


class SelfEvolve(SelfTaught):
    """Self-evolution: problems that grow with success, and verified experience of other policies beside its own."""

    type: Literal["self_evolve"]
    curriculum: Curriculum | None = Curriculum()
    """Which problems come up, by how often they are solved; passes over all of them where null."""
    growth: Growth | None = None
    """Problems that are made anew, level by level; those of the data alone where left out."""
    experience: list[Name] = []
    """Earlier policy-gradient stages, also of other branches, whose verified rollouts teach too. Read by
    success_distill."""
    learners: Learners | None = None
    """Several policies that share verified experience; one where left out. Read by success_distill."""
    experience_per_step: Count = 16
    """How many verified rollouts of others a step takes."""

    @model_validator(mode="after")
    def _experience_is_read(self) -> Self:
        if self.form != "success_distill":
            unread(self, "experience", f"with form: {self.form}; success_distill teaches what was verified")
            unread(self, "learners", f"with form: {self.form}; they share what success_distill teaches")
        if not self.experience and self.learners is None:
            unread(self, "experience_per_step", "without experience")
        return self

    @model_validator(mode="after")
    def _turns_are_whole(self) -> Self:
        if self.learners is not None and self.steps % self.learners.turns:
            raise ValueError(
                f"steps: found {self.steps}, expected a multiple of learners.turns ({self.learners.turns})"
            )
        return self

    @model_validator(mode="after")
    def _growth_is_possible(self) -> Self:
        if self.growth is None:
            return self
        if self.curriculum is None:
            raise ValueError("growth: levels come up by the curriculum's band and floor; leave curriculum: null out")
        if self.distill is not None or self.adversarial is not None:
            other = "distill" if self.distill is not None else "adversarial"
            raise ValueError(f"growth: {other} is about problems of the stage's data; leave one of the two out")
        return self


SelfTaughtAlgorithm = RLSD | SelfDistilled | SelfEvolve
