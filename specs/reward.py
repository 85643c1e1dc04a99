"""Reward: how verdicts become one number."""

from typing import Annotated

from pydantic import Field

from specs.base import Name, Share, Spec


class Repetition(Spec):
    """A penalty for what the policy writes again and again: coef times the share of n-grams that stood before."""

    ngram: Annotated[int, Field(ge=2)] = 3
    """Tokens of an n-gram."""
    coef: Annotated[float, Field(gt=0.0)] = 0.1
    """Most that is taken off."""


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
    """Most that calls can earn in sum, and most that they can lose."""
    process_per_call: Annotated[float, Field(ge=0.0)] = 0.0
    """Earned by each call that changed state or brought new information."""
    process_per_error: Annotated[float, Field(le=0.0)] = 0.0
    """Added for each call that could not be used or ended in an error of its own making."""
    per_extra_call: Annotated[float, Field(le=0.0)] = 0.0
    """Added for each call beyond the problem's shortest solution."""
    on_truncation: Annotated[float, Field(le=0.0)] = 0.0
    """Added where the trajectory was cut."""
    repetition: Repetition | None = None
    """Penalty for repeated tokens of the policy; none where left out."""
    max_invalid: Share = 0.1
    """Share of invalid verdicts above which a stage stops."""
