"""Which problems come next, by how often they are solved: estimates of success, and draws from the band that teaches.

p = (c + 2 q) / (n + 2); c, n: successes and rollouts of a problem, older ones counting less; q = (C + 1) / (N + 2) the same
of its type. Weight p (1 - p) + floor within the band, floor outside, 0 where it is known for good.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from specs.records import Problem, Trajectory
from specs.replay import Curriculum

if TYPE_CHECKING:
    from tasks.loops.growth import Growing

_PRIOR = 2.0
"""Rollouts that the rate of the type counts as."""


@dataclass(slots=True)
class Tally:
    """Successes and rollouts, older ones counting less, and draws in a row after which the problem counted as known."""

    successes: float = 0.0
    rollouts: float = 0.0
    known: int = 0

    def add(self, successes: int, rollouts: int, keep: float) -> None:
        """Count new rollouts."""
        self.successes = keep * self.successes + successes
        self.rollouts = keep * self.rollouts + rollouts


def weight(rate: float, spec: Curriculum) -> float:
    """Return how much a problem of this success rate is wanted."""
    inside = spec.band[0] <= rate <= spec.band[1]
    return (rate * (1 - rate) if inside else 0.0) + spec.floor


def rate_of(tally: Tally, prior: float) -> float:
    """Return an estimated success rate; `prior` is the rate where nothing was tried."""
    return (tally.successes + _PRIOR * prior) / (tally.rollouts + _PRIOR)


class CurriculumOrder:
    """Endless draws from one or several data sets, in place of shuffled passes. Sets are mixed by weight as there."""

    def __init__(
        self,
        sets: Mapping[str, Sequence[Problem]],
        seed: int,
        spec: Curriculum,
        weights: Mapping[str, float] | None = None,
        growing: "Growing | None" = None,
    ) -> None:
        """`growing` makes its share of each draw, and what the sets are too small to give."""
        pools = {"": [p for s in sets.values() for p in s]} if weights is None else {n: list(sets[n]) for n in weights}
        self._pools = {name: list({p.id: p for p in pool}.values()) for name, pool in pools.items() if pool}
        self._weights = {name: 1.0 if weights is None else weights[name] for name in self._pools}
        self._problems = {p.id: p for pool in self._pools.values() for p in pool}
        self._seed, self._spec, self._growing = seed, spec, growing
        self._number = 0
        self._drawn = dict.fromkeys(self._pools, 0)
        self._tallies: dict[str, Tally] = {}
        self._types: dict[str, Tally] = {}
        self._last: list[str] = []
        self.size = len(self._problems) if growing is None else sys.maxsize
        """Distinct problems."""

    def rate(self, problem: Problem) -> float:
        """Return the estimated success rate of a problem."""
        prior = 0.5
        if self._spec.by_type == "own":
            of_type = self._types.get(_type(problem), Tally())
            prior = (of_type.successes + 1) / (of_type.rollouts + 2)
        return rate_of(self._tallies.get(problem.id, Tally()), prior)

    def draw(self, count: int) -> list[Problem]:
        """Return the next problems, none twice in one draw; all of them where there are fewer than `count`."""
        rng = random.Random(f"{self._seed}/curriculum/{self._number}")
        self._number += 1
        wanted = {p.id: self._wanted(p) for p in self._problems.values()}
        taken: dict[str, Problem] = {}
        old = min(count if self._growing is None else count - self._growing.wanted(count), len(self._problems))
        while len(taken) < old:
            name = self._next_set(taken)
            problem = self._take(name, taken, wanted, rng)
            taken[problem.id] = problem
            self._drawn[name] += 1
        self._last = list(taken)
        drawn = list(taken.values())
        if self._growing is not None:
            drawn += self._growing.draw(count - len(drawn), taken)
            rng.shuffle(drawn)
        return drawn

    def _wanted(self, problem: Problem) -> float:
        if self._tallies.get(problem.id, Tally()).known >= self._spec.retire_after:
            return 0.0
        return weight(self.rate(problem), self._spec)

    def _next_set(self, taken: Mapping[str, Problem]) -> str:
        """Return the set that is furthest behind its weight, of those that still have a problem to give."""
        open_sets = [n for n, pool in self._pools.items() if any(p.id not in taken for p in pool)]
        return min(open_sets, key=lambda n: ((self._drawn[n] + 1) / self._weights[n], n))

    def _take(
        self, name: str, taken: Mapping[str, Problem], wanted: Mapping[str, float], rng: random.Random
    ) -> Problem:
        free = [p for p in self._pools[name] if p.id not in taken]
        chances = [wanted[p.id] for p in free]
        if rng.random() < self._spec.explore or not any(chances):
            return rng.choice(free)
        return rng.choices(free, chances)[0]

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        """Take note of what became of the problems that were drawn; a trajectory without a verdict counts nowhere."""
        if self._growing is not None:
            self._growing.learn(trajectories)
        found: dict[str, list[bool]] = {}
        for t in trajectories:
            if t.success is not None and t.problem_id in self._problems:
                found.setdefault(t.problem_id, []).append(t.success)
        for name, verdicts in found.items():
            problem, solved, count = self._problems[name], sum(verdicts), len(verdicts)
            tally = self._tallies.setdefault(name, Tally())
            tally.add(solved, count, self._spec.forget)
            self._types.setdefault(_type(problem), Tally()).add(solved, count, self._spec.forget)
            tally.known = tally.known + 1 if self.rate(problem) > self._spec.retire_above else 0

    def figures(self) -> dict[str, float]:
        """Return what the last draw looked like, by the estimates of now, and how many problems are known for good."""
        drawn = [self.rate(self._problems[name]) for name in self._last]
        known = sum(t.known >= self._spec.retire_after for t in self._tallies.values())
        low, high = self._spec.band
        return {
            "curriculum_rate": fmean(drawn) if drawn else 0.0,
            "curriculum_in_band": fmean(low <= r <= high for r in drawn) if drawn else 0.0,
            "curriculum_seen": len(self._tallies) / max(1, len(self._problems)),
            "curriculum_retired": known / max(1, len(self._problems)),
            **({} if self._growing is None else self._growing.figures()),
        }

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "number": self._number,
            "drawn": dict(self._drawn),
            "last": self._last,
            "tallies": {n: [t.successes, t.rollouts, t.known] for n, t in self._tallies.items()},
            "types": {n: [t.successes, t.rollouts, t.known] for n, t in self._types.items()},
            **({} if self._growing is None else {"growing": self._growing.state()}),
        }

    def load_state(self, data: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._number, self._drawn, self._last = data["number"], dict(data["drawn"]), list(data["last"])
        self._tallies = {n: Tally(*values) for n, values in data["tallies"].items()}
        self._types = {n: Tally(*values) for n, values in data["types"].items()}
        if self._growing is not None:
            self._growing.load_state(data["growing"])


def _type(problem: Problem) -> str:
    return f"{problem.environment}.{problem.type}"
