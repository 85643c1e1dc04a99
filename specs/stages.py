"""Stages: algorithm, data and the policy they start from."""

from typing import Annotated, Literal

from pydantic import Field

from specs.algorithms import Algorithm
from specs.base import Count, Name, Positive, SetName, Share, Spec
from specs.supervised import RFT


class Needs(Spec):
    """What the preflight of a stage must find before the stage runs."""

    success: Share = 0.01
    """Least mean success."""
    positive_problem_rate: Share = 0.0
    """Least share of problems with at least one success."""
    mixed_group_rate: Share = 0.0
    """Least share of groups with both successes and failures."""


class Preflight(Spec):
    """Rollouts before a policy-gradient stage that show whether it can learn."""

    problems: Count = 100
    samples: Annotated[int, Field(ge=2)] = 8


class Stage(Spec):
    """One step of the main part."""

    id: Name
    start: Name | None = Field(default=None, alias="from")
    """Stage whose policy this one starts from; the stage before where left out."""
    algorithm: Algorithm
    data: list[SetName] | dict[SetName, Positive]
    """Data sets, or data sets with their weights."""
    needs: Needs | None = None
    """Preflight that policy-gradient stages must pass; its default is a success of 0.01."""
    preflight: Preflight = Preflight()
    else_first: Literal["rft"] | RFT | None = None
    """What to run first where the preflight fails; then it is asked again."""
    tries: Count = 1
    """How often `else_first` may be run."""

    @property
    def reads(self) -> list[str]:
        """Return every data set that the stage reads: its own, and the demonstrations that it replays."""
        replay = getattr(self.algorithm, "replay", None)
        shown: list[str] = (
            replay.demonstrations.sets if replay is not None and replay.demonstrations is not None else []
        )
        return list(dict.fromkeys([*self.data, *shown]))
