"""Which rows make up each optimiser step of a supervised stage: the whole plan, before the first step."""

import math
import random
from collections.abc import Sequence

from specs.supervised import SupervisedBatch

JITTER = 0.13
"""Rows are sorted by length times a random factor of up to 1 + this, so that neighbours differ by epoch."""


def batch_plan(
    lengths: Sequence[int],
    batch: SupervisedBatch,
    epochs: float,
    seed: int,
    *,
    sets: Sequence[str] | None = None,
    weights: dict[str, float] | None = None,
) -> list[list[int]]:
    """Return the row indices of every step.

    Rows of like length stand together and the steps of an epoch are shuffled. With `weights` (and each row's set in
    `sets`) an epoch holds as many rows as there are, shared out exactly by weight; a set that is too small repeats.
    The last epoch is cut where `epochs` is not whole.
    """
    steps: list[list[int]] = []
    queues = _Queues(sets, weights, seed) if weights is not None and sets is not None else None
    for epoch in range(math.ceil(epochs)):
        rng = random.Random(f"{seed}/batches/{epoch}")
        indices = queues.draw(len(lengths)) if queues is not None else list(range(len(lengths)))
        of_epoch = _bucket(indices, lengths, batch, rng)
        rng.shuffle(of_epoch)
        share = min(1.0, epochs - epoch)
        steps += of_epoch[: math.ceil(share * len(of_epoch))]
    return steps


def shares(total: int, weights: dict[str, float]) -> dict[str, int]:
    """Return whole counts that sum to `total` and follow the weights (largest remainder)."""
    sum_of_weights = sum(weights.values())
    exact = {name: total * w / sum_of_weights for name, w in weights.items()}
    counts = {name: math.floor(x) for name, x in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


class _Queues:
    """Endless shuffled queues of row indices, one per set."""

    def __init__(self, sets: Sequence[str], weights: dict[str, float], seed: int) -> None:
        self._weights = weights
        self._seed = seed
        self._members: dict[str, list[int]] = {name: [] for name in weights}
        for i, name in enumerate(sets):
            self._members[name].append(i)
        self._left: dict[str, list[int]] = {name: [] for name in weights}
        self._rounds = dict.fromkeys(weights, 0)

    def draw(self, total: int) -> list[int]:
        """Return the next rows of each set by its share."""
        drawn: list[int] = []
        for name, count in shares(total, self._weights).items():
            while len(self._left[name]) < count:
                fresh = list(self._members[name])
                random.Random(f"{self._seed}/mixture/{name}/{self._rounds[name]}").shuffle(fresh)
                self._rounds[name] += 1
                self._left[name] += fresh
            drawn += self._left[name][:count]
            self._left[name] = self._left[name][count:]
        return drawn


def _bucket(indices: list[int], lengths: Sequence[int], batch: SupervisedBatch, rng: random.Random) -> list[list[int]]:
    keyed = sorted((lengths[i] * (1 + JITTER * rng.random()), n, i) for n, i in enumerate(indices))
    order = [i for _, _, i in keyed]
    if batch.rows is not None:
        return [order[k : k + batch.rows] for k in range(0, len(order), batch.rows)]
    assert batch.tokens is not None
    steps: list[list[int]] = []
    current: list[int] = []
    longest = 0
    for i in order:
        width = max(longest, lengths[i])
        if current and width * (len(current) + 1) > batch.tokens:
            steps.append(current)
            current, width = [], lengths[i]
        current.append(i)
        longest = width
    return [*steps, current] if current else steps
