"""Orders of candidates as tiers: the best first, those of one tier equally good. Pure."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def preferred(tiers: Sequence[Sequence[T]]) -> dict[tuple[T, T], int]:
    """Return the pairs (better, worse) of an order, with their distance in tiers."""
    return {
        (a, b): lower - upper
        for upper, better in enumerate(tiers)
        for lower, worse in enumerate(tiers)
        if upper < lower
        for a in better
        for b in worse
    }


def shares(tiers: Sequence[Sequence[T]]) -> dict[T, float]:
    """Return by candidate the share of the others that it stands above, a tie counting half (Borda); 1 where it is alone."""
    below = sum(len(tier) for tier in tiers)
    others = max(1, below - 1)
    found: dict[T, float] = {}
    for tier in tiers:
        below -= len(tier)
        found |= dict.fromkeys(tier, (below + (len(tier) - 1) / 2) / others)
    return found if len(found) > 1 else dict.fromkeys(found, 1.0)


def agreed(orders: Sequence[Sequence[Sequence[T]]]) -> tuple[dict[tuple[T, T], float], int]:
    """Return the pairs (better, worse) that stand so in all orders, with their mean distance, and how many stand so in some alone."""
    found = [preferred(tiers) for tiers in orders]
    both = [pair for pair in found[0] if all(pair in order for order in found[1:])]
    either = {frozenset(pair) for order in found for pair in order}
    return {pair: sum(order[pair] for order in found) / len(found) for pair in both}, len(either) - len(both)
