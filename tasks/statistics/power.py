"""What a number of problems can decide, known before anything runs.

Paired differences follow Connor (1987): N = (z_alpha sqrt(pi_d) + z_beta sqrt(pi_d - d^2))^2 / d^2, where pi_d is the
share of problems on which the two policies differ. Bounds on one share are Wilson's, one-sided.
"""

import math

from tasks.statistics.distributions import quantile
from tasks.statistics.intervals import wilson


def sample_size(difference: float, discordant: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Return the problems needed to see a paired difference; None where it exceeds the discordant share."""
    if not 0.0 < difference <= discordant <= 1.0:
        return None
    return math.ceil(_pairs(difference, discordant, alpha, power) - 1e-9)


def _pairs(difference: float, discordant: float, alpha: float, power: float) -> float:
    za, zb = quantile(1.0 - alpha), quantile(power)
    root = za * math.sqrt(discordant) + zb * math.sqrt(max(0.0, discordant - difference * difference))
    return (root / difference) ** 2


def detectable_difference(problems: int, discordant: float, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Return the smallest paired difference seen with the given power; None where no difference could be seen."""
    if problems < 1 or not 0.0 < discordant <= 1.0 or _pairs(discordant, discordant, alpha, power) > problems:
        return None
    low, high = 1e-9, discordant
    for _ in range(80):
        middle = (low + high) / 2.0
        if _pairs(middle, discordant, alpha, power) <= problems:
            high = middle
        else:
            low = middle
    return high


def unpaired_sample_size(difference: float, centre: float = 0.5, alpha: float = 0.05, power: float = 0.8) -> int:
    """Return the problems per arm that two separate sets need (two-sided alpha)."""
    first, second = centre - difference / 2.0, centre + difference / 2.0
    spread = first * (1.0 - first) + second * (1.0 - second)
    return math.ceil((quantile(1.0 - alpha / 2.0) + quantile(power)) ** 2 * spread / difference**2)


def successes_needed(problems: int, bound: float, alpha: float = 0.05) -> int | None:
    """Return the fewest successes whose one-sided lower Wilson bound reaches `bound`; None where none do.

    0.9 needs 370 of 400 and 187 of 200 at alpha 0.05.
    """
    confidence = 1.0 - 2.0 * alpha
    if problems < 1 or wilson(problems, problems, confidence).low < bound:
        return None
    low, high = 0, problems
    while low < high:
        middle = (low + high) // 2
        if wilson(middle, problems, confidence).low >= bound:
            high = middle
        else:
            low = middle + 1
    return low


def problems_needed(bound: float, alpha: float = 0.05) -> int | None:
    """Return the fewest problems with which `at_least: bound` could pass at all; None for a bound of 1 or more."""
    if bound >= 1.0:
        return None
    if bound <= 0.0:
        return 1
    z = quantile(1.0 - alpha)
    return max(1, math.ceil(z * z * bound / (1.0 - bound) - 1e-9))


def concordant_needed(margin: float, alpha: float = 0.05) -> int:
    """Return the concordant pairs that show "no worse by margin" when not one pair differs (0.02 needs 149)."""
    if not 0.0 < margin < 1.0:
        raise ValueError(f"expected a margin between 0 and 1, found {margin!r}")
    return math.ceil(math.log(alpha) / math.log1p(-margin) - 1e-9)


def discordant_needed(alpha: float = 0.05) -> int:
    """Return the one-directional discordant pairs that an exact one-sided test needs to reach alpha (0.05: 5)."""
    return math.ceil(-math.log2(alpha) - 1e-9)
