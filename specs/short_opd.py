"""Distillation of a damaged policy with rollouts no longer than they teach: which length, which tokens."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Positive, Share, Spec
from specs.bounds import unread
from specs.distillation import OPD
from specs.policy_gradient import NotNegative

Three = Annotated[tuple[Count, Count, Count], Field(strict=False)]
"""Three lengths in tokens, written as a list."""
Two = Annotated[tuple[Positive, Positive], Field(strict=False)]
"""Two bounds, the lower first, written as a list."""


class _Bounded(Spec):
    """Three lengths, told apart by two bounds."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        for name in ("bounds", "lengths"):
            values = getattr(self, name)
            if list(values) != sorted(values):
                raise ValueError(f"{name}: found {list(values)}, expected them to rise")
        return self


class ByGap(_Bounded):
    """By the mean divergence on the last step's rollouts: the nearer the teacher, the shorter.

    With `truncated: mask` what was cut says nothing: where most rollouts were, the next longer length is used.
    """

    kind: Literal["by_gap"]
    bounds: Two = (0.2, 0.5)
    """Nats below which the first, then the second length is used; else the third."""
    lengths: Three = (128, 512, 2048)


class ByConfidence(_Bounded):
    """By the mean probability of what the policy wrote in the last step: the surer, the shorter.

    With `truncated: mask`, where most rollouts were cut and do not train, the next longer length is used.
    """

    kind: Literal["by_confidence"]
    bounds: Two = (0.5, 0.9)
    """Above the second the first length is used, above the first the second; else the third."""
    lengths: Three = (128, 512, 2048)


class ByRepetition(Spec):
    """By how many completions end in a loop: shorter where many do, longer where few do and many are cut.

    A loop is a suffix that repeats a period, and one that the teacher does not correct. It does not train.
    """

    kind: Literal["by_repetition"]
    start: Count = 512
    """Length of the first steps."""
    least: Count = 64
    most: Count = 2048
    every: Count = 10
    """Steps after which the length is reconsidered, by what they saw."""
    period: Count = 256
    """Longest period of a loop, in tokens."""
    copies: Annotated[int, Field(ge=2)] = 3
    """Periods that must stand at the end."""
    least_loop: Count = 64
    """Fewest tokens of a loop."""
    agreed: NotNegative = 0.3
    """Mean divergence within the loop, in nats, up to which the teacher finds it predictable too."""
    shrink_above: Share = 0.2
    """Share of looping completions from which the length shrinks."""
    grow_below: Share = 0.05
    """Share of looping completions below which it may grow."""
    cut_above: Share = 0.3
    """Share of cut completions from which it then grows."""
    shrink: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.75
    grow: Annotated[float, Field(gt=1.0)] = 1.25
    least_kept: Share = 0.3
    """Share of the tokens outside loops below which a step does not train, and the length shrinks at once."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.least <= self.start <= self.most:
            raise ValueError(f"found least {self.least}, start {self.start}, most {self.most}; expected them to rise")
        return self


Length = Annotated[ByGap | ByConfidence | ByRepetition, Field(discriminator="kind")]


class Tokens(Spec):
    """Single tokens by their divergence."""

    kind: Literal["tokens"]
    above: NotNegative = 0.0
    """Nats that a token's divergence must exceed."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the step's tokens that is kept, those with the highest divergence."""


class Segments(Spec):
    """Whole turns by their mean divergence."""

    kind: Literal["segments"]
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of each trajectory's turns that is kept, one at least."""


Selection = Annotated[Tokens | Segments, Field(discriminator="kind")]


class ShortOPD(OPD):
    """On-policy distillation with rollouts of a length that is found on the way, and of selected tokens."""

    type: Literal["short_opd"]  # pyright: ignore[reportIncompatibleVariableOverride] a union tells members apart by it
    length: Length = ByGap(kind="by_gap")
    """Most tokens of a completion, at most the agent's `max_new_tokens`."""
    select: Selection | None = None
    """Which tokens train; all where left out."""
    horizon: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of a trajectory's tokens, from its first on, that train in the first step; it rises to all in the last."""

    @model_validator(mode="after")
    def _cuts_on_purpose(self) -> Self:
        unread(self, "max_truncated", "by short_opd, which cuts completions on purpose; leave it out")
        return self

    @model_validator(mode="after")
    def _something_is_rolled_out(self) -> Self:
        if round(self.demonstrations * self.problems_per_step) >= self.problems_per_step:
            raise ValueError(
                f"demonstrations: found {self.demonstrations:g}, which leaves nothing to roll out, but lengths are found by "
                "rollouts; lower it, or use opd"
            )
        return self
