"""Holm's step-down correction (Holm 1979): the chance of any wrong claim stays within alpha, whatever depends on what."""

from collections.abc import Sequence


def adjust(ps: Sequence[float]) -> list[float]:
    """Return the adjusted p-values in the order given; a claim holds at alpha iff its adjusted p is at most alpha."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted = [0.0] * len(ps)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = running
    return adjusted


def levels(ps: Sequence[float], alpha: float) -> list[float]:
    """Return the level that each p-value is compared with at its turn (alpha / tests that are left)."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    result = [alpha] * len(ps)
    for rank, i in enumerate(order):
        result[i] = alpha / (len(ps) - rank)
    return result
