"""Which problems come next: shuffled passes over each data set, mixed by weight."""

import random
from collections.abc import Mapping, Sequence

from specs.errors import DataError
from specs.records import Problem

ADVERSARIAL = "adversarial"
"""Tag of problems that tempt a policy to do what it must not."""
Sets = Mapping[str, Sequence[Problem]]
Weights = Mapping[str, float] | None


def with_adversarial(sets: Sets, weights: Weights, share: float) -> tuple[Sets, Weights]:
    """Return the sets, each split by the tag, and weights that give the adversarial ones this share together.

    Among themselves both parts have the weights of their sets; without weights they count as one set each. DataError where
    a part is empty.
    """
    parts = {
        tagged: {n: [p for p in s if (ADVERSARIAL in p.tags) is tagged] for n, s in sets.items()}
        for tagged in (True, False)
    }
    split: dict[str, Sequence[Problem]] = {}
    found: dict[str, float] = {}
    for tagged, whole in ((True, share), (False, 1 - share)):
        filled = {n: s for n, s in parts[tagged].items() if s}
        if not filled:
            which = "has the tag" if tagged else "is without the tag"
            raise DataError(
                f"adversarial: {share:g}: no problem {which} `{ADVERSARIAL}`; set environments.NAME.adversarial to a share "
                "between 0 and 1, or leave adversarial out"
            )
        own = {n: len(s) if weights is None else weights[n] for n, s in filled.items()}
        for name, problems in filled.items():
            split[f"{name}/{tagged}"] = problems
            found[f"{name}/{tagged}"] = whole * own[name] / sum(own.values())
    return split, found


class ProblemOrder:
    """Endless draws from one or several data sets. The same arguments give the same draws."""

    def __init__(
        self, sets: Mapping[str, Sequence[Problem]], seed: int, weights: Mapping[str, float] | None = None
    ) -> None:
        """Without weights, the sets count as one: every problem comes up equally often."""
        pools = {"": [p for s in sets.values() for p in s]} if weights is None else {n: list(sets[n]) for n in weights}
        self._pools = {name: pool for name, pool in pools.items() if pool}
        self._weights = {name: 1.0 if weights is None else weights[name] for name in self._pools}
        self._seed = seed
        self._passes = dict.fromkeys(self._pools, 0)
        self._left: dict[str, list[Problem]] = {name: [] for name in self._pools}
        self._drawn = dict.fromkeys(self._pools, 0)
        self.size = len({p.id for pool in self._pools.values() for p in pool})
        """Distinct problems."""

    def draw(self, count: int) -> list[Problem]:
        """Return the next problems, none twice in one draw; all of them where there are fewer than `count`."""
        taken: dict[str, Problem] = {}
        while len(taken) < min(count, self.size):
            name = self._next_set(taken)
            problem = self._take(name, taken)
            taken[problem.id] = problem
            self._drawn[name] += 1
        return list(taken.values())

    def _next_set(self, taken: Mapping[str, Problem]) -> str:
        """Return the set that is furthest behind its weight, of those that still have a problem to give."""
        open_sets = [n for n, pool in self._pools.items() if any(p.id not in taken for p in pool)]
        return min(open_sets, key=lambda n: ((self._drawn[n] + 1) / self._weights[n], n))

    def _take(self, name: str, taken: Mapping[str, Problem]) -> Problem:
        left = self._left[name]
        at = next((i for i, p in enumerate(left) if p.id not in taken), None)
        if at is None:
            fresh = list(self._pools[name])
            random.Random(f"{self._seed}/order/{name}/{self._passes[name]}").shuffle(fresh)
            self._passes[name] += 1
            left += fresh
            at = next(i for i, p in enumerate(left) if p.id not in taken)
        return left.pop(at)
