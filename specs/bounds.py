"""Numbers with bounds that several algorithms take, and settings that another one makes idle."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from specs.base import Positive, Share, Spec


def _not_alone(size: object) -> object:
    """Refuse a group of one, with the reason."""
    if size is not True and size == 1:
        raise ValueError(
            "found 1: trajectories of a problem are compared with one another, and one alone has an advantage of 0; needs at "
            "least 2 samples of a problem, or reinforce, ppo, turn_ppo or sao, which do with 1"
        )
    return size


GroupSize = Annotated[int, Field(ge=2), BeforeValidator(_not_alone)]
NotNegative = Annotated[float, Field(ge=0.0)]
AboveOne = Annotated[float, Field(gt=1.0)]
Band = Annotated[tuple[Positive, Positive], Field(strict=False)]
"""Two ratios, the lower first, written as a list; both belong to the band."""


class CutBound(Spec):
    """How many rollouts may be cut before the stage stops."""

    max_truncated: Share = 0.9
    """Share of cut trajectories above which the stage stops: of a step, or of all where they are drawn beforehand."""


class RolloutBounds(CutBound):
    """What may be wrong with a step's rollouts before the stage stops."""

    max_logprob_gap: Positive = 0.1
    """Mean |trainer - sampler| logprob of a fresh batch from which the stage stops."""
    max_missing_logprobs: Share = 0.001
    """Share of tokens whose sampler logprob is missing, from which the stage stops; up to there they do not train."""


def in_order(band: tuple[float, float] | None, name: str) -> None:
    """Refuse two ratios of which the first is higher."""
    if band is not None and band[0] > band[1]:
        raise ValueError(f"{name}: found {list(band)}, expected the lower ratio first")


def unread(spec: Spec, name: str, why: str) -> None:
    """Refuse a setting that another one makes idle; its default passes, as a stored spec has every field."""
    if getattr(spec, name) != type(spec).model_fields[name].default:
        raise ValueError(f"{name} is not read {why}")
