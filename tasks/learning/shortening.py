"""Which tokens of a rollout still teach: loops at its end, tokens and turns by divergence, the first part of it.

T tokens of a row.
"""

import math
from collections.abc import Sequence
from itertools import groupby

from specs.short_opd import ByRepetition, Segments, Tokens


def loop_start(ids: Sequence[int], spec: ByRepetition) -> int | None:
    """Return where the loop at the end of a completion begins: after its first period. None where there is none.

    The smallest period counts. A loop is as long as the period repeats, `copies` periods and `least_loop` tokens at
    least.
    """
    count = len(ids)
    for period in range(1, min(spec.period, count // spec.copies) + 1):
        at = count - 1
        while at - period >= 0 and ids[at] == ids[at - period]:
            at -= 1
        length = count - 1 - at + period  # from the first token that is repeated to the end
        if length >= max(spec.copies * period, spec.least_loop):
            return count - length + period
    return None


def runs(mask: Sequence[bool]) -> list[list[int]]:
    """Return the places of each run of trained tokens: a turn."""
    found: list[list[int]] = []
    for inside, run in groupby(range(len(mask)), key=lambda t: mask[t]):
        if inside:
            found.append(list(run))
    return found


def kept_tokens(values: Sequence[Sequence[float]], masks: Sequence[Sequence[bool]], spec: Tokens) -> list[list[bool]]:
    """Return which tokens of a step are kept: those above the bound, the highest divergences first up to the share."""
    places = [(-values[i][t], i, t) for i, mask in enumerate(masks) for t, inside in enumerate(mask) if inside]
    chosen = sorted(places)[: math.ceil(spec.share * len(places))]
    kept = {(i, t) for value, i, t in chosen if -value > spec.above or spec.above == 0}
    return [[(i, t) in kept for t in range(len(mask))] for i, mask in enumerate(masks)]


def kept_turns(values: Sequence[float], mask: Sequence[bool], spec: Segments) -> list[bool]:
    """Return which tokens of a row are of the turns with the highest mean divergence."""
    turns = runs(mask)
    means = [math.fsum(values[t] for t in turn) / len(turn) for turn in turns]
    order = sorted(range(len(turns)), key=lambda k: (-means[k], k))[: math.ceil(spec.share * len(turns))]
    kept = {t for k in order for t in turns[k]}
    return [t in kept for t in range(len(mask))]


def first_part(mask: Sequence[bool], share: float) -> list[bool]:
    """Return which tokens are among the first of those that train."""
    left, kept = math.ceil(share * sum(mask)), list[bool]()
    for inside in mask:
        kept.append(inside and left > 0)
        left -= inside
    return kept
