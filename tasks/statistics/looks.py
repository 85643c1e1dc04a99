"""Alpha spending over a declared number of looks at the same evaluation sets.

Lan and DeMets (1983). The level of look i is what the spending function gives out between i - 1 and i, so the levels
add up to alpha and the chance of a false pass over all looks is at most alpha however the looks depend on one another
(each look may ask another candidate, so the joint distribution of group-sequential theory is not to be had).
`pocock` spends nearly evenly and is the default: the first look is the one that usually matters.
"""

import math
from typing import Literal

from tasks.statistics.distributions import quantile, upper_tail

Shape = Literal["pocock", "obrien_fleming"]


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
