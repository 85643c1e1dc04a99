"""Problems that grow with success: new ones of the environment's generator, at levels that open one after another.

A level is a number of calls. The next one opens where p of the hardest open one is above `open_above`; of the open ones a
level comes up with weight p (1 - p) + floor within the curriculum's band, floor outside, as problems do there.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from specs.errors import DataError
from specs.records import Problem, Trajectory
from specs.replay import Curriculum
from specs.self_teaching import Growth
from tasks.episodes.seeds import derive
from tasks.loops.curriculum import Tally, rate_of, weight

_CHUNKS = 64
"""Draws of the generator in a row that may hold no problem of a level."""
Make = Callable[[int], list[Problem]]
"""Seed -> new problems, of any level."""
Refuse = Callable[[Problem], bool]
"""Whether a problem must not train."""


@dataclass(slots=True)
class _Level:
    """What is known of a level, and how far its own stream of new problems was read."""

    tally: Tally = field(default_factory=Tally)
    rollouts: int = 0
    """With a verdict; none is forgotten."""
    draw: int = 0
    """Draw of the generator that comes next, and the problem of this level in it."""
    at: int = 0


class Growing:
    """Endless new problems, none twice in one draw. The same arguments and outcomes give the same ones."""

    def __init__(self, spec: Growth, curriculum: Curriculum, make: Make, refuse: Refuse, seed: int) -> None:
        self._spec, self._curriculum = spec, curriculum
        self._make, self._refuse, self._seed = make, refuse, seed
        self._levels = {calls: _Level() for calls in spec.calls}
        self._open = 1
        self._number = 0
        self._drawn: dict[int, tuple[int, list[Problem]]] = {}
        self._last: dict[str, int] = {}
        self._solved: dict[int, list[bool]] = {}
        self._refused = 0

    def wanted(self, count: int) -> int:
        """Return how many of a step's problems are to be made."""
        return round(self._spec.share * count)

    def draw(self, count: int, taken: Iterable[str]) -> list[Problem]:
        """Return new problems of open levels, other ones than those in `taken`. DataError where a level has none."""
        rng = random.Random(f"{self._seed}/growth/{self._number}")
        self._number += 1
        self._refused, self._last, self._solved = 0, {}, {}
        chances = [weight(self._rate(calls), self._curriculum) for calls in self._opened]
        known, made = set(taken), list[Problem]()
        for _ in range(count):
            explores = rng.random() < self._curriculum.explore
            calls = rng.choice(self._opened) if explores else rng.choices(self._opened, chances)[0]
            problem = self._next(calls, known)
            known.add(problem.id)
            self._last[problem.id] = calls
            made.append(problem)
        return made

    @property
    def _opened(self) -> list[int]:
        return self._spec.calls[: self._open]

    def _rate(self, calls: int) -> float:
        return rate_of(self._levels[calls].tally, 0.5)

    def _next(self, calls: int, known: set[str]) -> Problem:
        level = self._levels[calls]
        for _ in range(_CHUNKS):
            found = self._chunk(calls, level.draw)
            while level.at < len(found):
                problem = found[level.at]
                level.at += 1
                if problem.id in known:
                    continue
                if not self._refuse(problem):
                    return problem
                self._refused += 1
            level.draw, level.at = level.draw + 1, 0
        raise DataError(
            f"growth: {_CHUNKS} draws of the generator gave no new problem of {calls} calls that no evaluation set gives "
            "away; take the level out of growth.calls, or declare other environments.NAME.types"
        )

    def _chunk(self, calls: int, number: int) -> list[Problem]:
        """Return the problems of a level in one draw of the generator; each level has draws of its own."""
        kept = self._drawn.get(calls)
        if kept is None or kept[0] != number:
            made = self._make(derive(self._seed, "growth", calls, number))
            kept = self._drawn[calls] = (number, [p for p in made if p.min_calls == calls])
        return kept[1]

    def learn(self, trajectories: Iterable[Trajectory]) -> None:
        """Take note of what became of the last draw, and open the next level where it is time."""
        for t in trajectories:
            calls = self._last.get(t.problem_id)
            if calls is not None and t.success is not None:
                self._solved.setdefault(calls, []).append(t.success)
        for calls, verdicts in self._solved.items():
            level = self._levels[calls]
            level.rollouts += len(verdicts)
            level.tally.add(sum(verdicts), len(verdicts), self._curriculum.forget)
        hardest = self._opened[-1]
        enough = self._levels[hardest].rollouts >= self._spec.least
        if enough and self._rate(hardest) > self._spec.open_above:
            self._open = min(self._open + 1, len(self._spec.calls))

    def figures(self) -> dict[str, float]:
        """Return the hardest level that is open, and of the last draw the share and the success of each level."""
        told = {"growth_calls": float(self._opened[-1]), "growth_refused": float(self._refused)}
        for calls in self._spec.calls:
            told[f"made_{calls}_calls"] = sum(c == calls for c in self._last.values()) / max(1, len(self._last))
            if verdicts := self._solved.get(calls):
                told[f"solved_{calls}_calls"] = sum(verdicts) / len(verdicts)
        return told

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "number": self._number,
            "open": self._open,
            "levels": {str(calls): asdict(level) for calls, level in self._levels.items()},
        }

    def load_state(self, data: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._number, self._open = data["number"], data["open"]
        for calls, level in data["levels"].items():
            self._levels[int(calls)] = _Level(**{**level, "tally": Tally(**level["tally"])})
