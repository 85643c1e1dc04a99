"""Reward: how verdicts become one number."""

from typing import Annotated

from pydantic import Field

from specs.base import Name, Share, Spec


class Reward(Spec):
    """A hard floor, an outcome that dominates, and bounded extras."""

    floor: float = -1.0
    """Reward where a hard condition is broken."""
    must: list[Name] = []
    """Verifiers that are hard conditions."""
    outcome: dict[Name, Annotated[float, Field(gt=0.0)]] = {}
    """Verifiers that decide success, with weights that are normalised to sum to one."""
    soft: dict[Name, Annotated[float, Field(gt=0.0)]] = {}
    """Verifiers that add at most their weight."""
    process_cap: Annotated[float, Field(ge=0.0)] = 0.0
    """Most that calls which changed state can earn in sum."""
    process_per_call: Annotated[float, Field(ge=0.0)] = 0.0
    """Earned by each call that changed state or brought new information."""
    per_extra_call: Annotated[float, Field(le=0.0)] = 0.0
    """Added for each call beyond the problem's shortest solution."""
    on_truncation: Annotated[float, Field(le=0.0)] = 0.0
    """Added where the trajectory was cut."""
    max_invalid: Share = 0.1
    """Share of invalid verdicts above which a stage stops."""
