"""What a policy gradient trains on beside its fresh rollouts, and which problems it rolls out."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Positive, SetName, Share, Shares, Spec

NotNegative = Annotated[float, Field(ge=0.0)]


class History(Spec):
    """Trajectories of earlier steps, drawn again by how much they have to teach.

    Drawn with probability p^alpha / sum p^alpha, p = |advantage| + floor; the policy's term of one is multiplied by
    (N P)^-beta over the largest such weight of the buffer. Ratios are to the logprobs of the policy that wrote it.
    """

    capacity: Count = 512
    """Most trajectories that are kept; the oldest groups go first, each as a whole."""
    per_step: Count = 32
    """Trajectories that are drawn in each step."""
    fill: Literal["always", "silent"] = "always"
    """Draw `per_step`; or only as many as the step's silent groups hold, `per_step` at most."""
    admit: Literal["all", "successes", "failures"] = "all"
    """Which trajectories are taken in. Never one that has no verdict, that does not train, or whose advantage is 0."""
    min_advantage: NotNegative = 0.0
    """Least |advantage| of what is taken in; of a critic's, their mean over the tokens."""
    max_age: Count = 8
    """Steps after which a trajectory leaves."""
    max_uses: Count = 2
    """How often one is drawn at most, in one step or several, before it leaves."""
    alpha: Share = 0.6
    """How much the advantage decides: 0 draws all alike."""
    floor: Positive = 1e-3
    """Added to |advantage|."""
    beta: Share = 0.4
    """How much of the unequal draw the weights take back in the first step."""
    beta_end: Share = 1.0
    """The same in the last step; between them it changes linearly."""
    weight: Positive = 1.0
    """Weight of each of them in the step's mean; a fresh trajectory has 1."""

    @model_validator(mode="after")
    def _buffer_feeds_a_step(self) -> Self:
        if self.per_step > self.capacity:
            raise ValueError(f"per_step: found {self.per_step}, expected at most capacity ({self.capacity})")
        if self.alpha == 0 and {"beta", "beta_end"} & self.model_fields_set:
            raise ValueError("beta and beta_end are not read with alpha: 0, where all are drawn alike")
        return self


class Shown(Spec):
    """Demonstrations that train in each step beside the rollouts, with a ratio that begins at 1.

    In the first pass their gradient is `advantage` times that of maximum likelihood.
    """

    sets: Annotated[list[SetName], Field(min_length=1)]
    """Data sets of demonstrations."""
    per_step: Count = 16
    """Demonstrations in each step; passes over the sets, each shuffled anew."""
    advantage: Positive = 1.0
    """Advantage of their tokens; where a critic gives advantages, their reward."""
    weight: Positive = 1.0
    """Weight of each of them in the step's mean; a fresh trajectory has 1."""
    until: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the steps in which they take part, from the first on."""


class Replay(Spec):
    """Hybrid batches: fresh rollouts, trajectories of earlier steps, demonstrations. At least one of the last two."""

    history: History | None = None
    demonstrations: Shown | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.history is None and self.demonstrations is None:
            raise ValueError("expected history, demonstrations or both; leave replay out where neither is wanted")
        return self


class Curriculum(Spec):
    """Problems by success band: those come up most that are sometimes solved.

    The success rate of a problem is estimated from its own rollouts, older ones counting less, and from those of its
    type: p = (c + 2 q) / (n + 2), q = (C + 1) / (N + 2) of the type. It is drawn with weight p (1 - p) + floor.
    """

    band: Shares = (0.2, 0.8)
    """Estimated success rates between which problems have that weight; outside they have `floor` alone."""
    floor: Positive = 0.02
    explore: Share = 0.15
    """Share of the draws that go to any problem, all alike."""
    forget: Share = 0.9
    """What an estimate keeps of its counts when new rollouts arrive."""
    by_type: Literal["own", "all"] = "own"
    """Where a problem without rollouts has its rate from: those of its type, or 1/2 for all."""
    retire_above: Share = 0.95
    """Estimated rate above which a problem counts as known."""
    retire_after: Count = 3
    """Draws in a row as known after which a problem comes up by exploration alone, until it is no longer known."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.band[0] > self.band[1]:
            raise ValueError(f"band: found {list(self.band)}, expected the lower rate first")
        if self.retire_above <= self.band[0]:
            raise ValueError(
                f"retire_above: found {self.retire_above:g}, expected more than the band's lower rate ({self.band[0]:g})"
            )
        return self
