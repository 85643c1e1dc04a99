"""Alpha spending over a declared number of looks at the same evaluation sets.

Lan and DeMets (1983). The level of look i is what the spending function gives out between i - 1 and i, so the levels
add up to alpha and the chance of a false pass over all looks is at most alpha however the looks depend on one another
(each look may ask another candidate, so the joint distribution of group-sequential theory is not to be had).
`pocock` spends nearly evenly and is the default: the first look is the one that usually matters. Where other looks
were declared before, they spent other levels: what is left of alpha then bounds the next one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tasks.statistics.distributions import quantile, upper_tail

Shape = Literal["pocock", "obrien_fleming"]
_NOTHING = 1e-12
"""Share of alpha that rounding may leave or take."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A policy that was asked about, and the alpha that it spent."""

    candidate: str
    alpha: float


def look_at(candidate: str | None, asked: Iterable[Asked]) -> tuple[int, float, float]:
    """Return which look a candidate's is, from 1, the alpha spent before it, and that which all other looks spent.

    The same policy again is the same look.
    """
    known = list(asked)
    index = next((i for i, a in enumerate(known) if a.candidate == candidate), len(known))
    before = sum((a.alpha for a in known[:index]), 0.0)
    return index + 1, before, before + sum(a.alpha for a in known[index + 1 :])


def level_of(alpha: float, looks: int, look: int, used: float) -> float:
    """Return the level of a look where other looks spent `used`: what `spend` gives, at most what is left; else 0."""
    planned, left = spend(alpha, looks, look), alpha - used
    if planned <= left + _NOTHING * alpha:  # as planned from the start: the same number whatever was asked since
        return planned
    return left if left > _NOTHING * alpha else 0.0


def spent(alpha: float, share: float, shape: Shape = "pocock") -> float:
    """Return the alpha spent when a share in [0, 1] of the looks is used."""
    if share <= 0.0:
        return 0.0
    if shape == "pocock":
        return alpha * math.log(1.0 + (math.e - 1.0) * min(share, 1.0))
    return 2.0 * upper_tail(quantile(1.0 - alpha / 2.0) / math.sqrt(min(share, 1.0)))


def spend(alpha: float, looks: int, look: int, shape: Shape = "pocock") -> float:
    """Return the level at which look `look` (from 1) of `looks` tests; 0 when the declared looks are used up."""
    if looks < 1 or look < 1:
        raise ValueError(f"expected looks and look of at least 1, found {looks!r} and {look!r}")
    if look > looks:
        return 0.0
    return spent(alpha, look / looks, shape) - spent(alpha, (look - 1) / looks, shape)
