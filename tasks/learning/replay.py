"""Replay buffer: trajectories of earlier steps, drawn by priority (prioritised experience replay, arXiv:1511.05952).

P(i) = p_i^alpha / sum p^alpha; w_i = (N P(i))^-beta / max over the buffer, which no draw rescales. Draws are stratified:
trajectory i comes up n P(i) times in expectation, and one that comes up twice weighs double; what would exceed its uses
goes to the others. Old ones leave before anything is drawn. Left out: priorities by the temporal-difference error of single tokens.
"""

import bisect
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specs.replay import History
from tasks.learning.rows import TrainingRow

PREFIX = "replay."
"""Of the buffer's tensors in a checkpoint."""


def probabilities(priorities: Sequence[float], alpha: float) -> list[float]:
    """Return how likely each is to be drawn."""
    powers = [p**alpha for p in priorities]
    total = sum(powers)
    return [p / total for p in powers]


def importance_weights(chances: Sequence[float], beta: float) -> list[float]:
    """Return what takes the unequal draw back: (N P)^-beta, before it is divided by the largest."""
    return [(len(chances) * p) ** -beta for p in chances]


def annealed(begin: float, end: float, step: int, steps: int) -> float:
    """Return the value at a step, linear from the first to the last."""
    return begin if steps < 2 else begin + (end - begin) * min(1.0, step / (steps - 1))


def stratified(chances: Sequence[float], count: int, rng: random.Random) -> Counter[int]:
    """Return how often each index is drawn: one draw from each of `count` equal parts of the whole."""
    ends = list(accumulate(chances))
    drawn: Counter[int] = Counter()
    for k in range(count):
        at = (k + rng.random()) / count * ends[-1]
        drawn[min(bisect.bisect_right(ends, at), len(ends) - 1)] += 1
    return drawn


@dataclass(slots=True)
class Kept:
    """A trajectory in the buffer: its rows, one for each of its contexts."""

    trajectory: str
    group: str
    step: int
    """In which it was rolled out."""
    priority: float
    """|advantage|; infinite until a critic has given one."""
    rows: list[TrainingRow]
    uses: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """One trajectory of a step's draw."""

    kept: Kept
    times: int
    """How often it was drawn."""
    weight: float
    """Importance weight, at most 1."""


class ReplayBuffer:
    """Holds what earlier steps rolled out. The same calls in the same order give the same draws."""

    def __init__(self, spec: History, seed: int) -> None:
        self._spec, self._seed = spec, seed
        self._kept: list[Kept] = []
        self.left: dict[str, int] = {}
        """Reason -> trajectories that were not taken in, or have left."""

    def __len__(self) -> int:
        return len(self._kept)

    def admit(self, step: int, rows: Sequence[TrainingRow], success: Mapping[str, bool], *, by_critic: bool) -> None:
        """Take in the fresh trajectories of a step that are wanted, after the step has trained on them.

        `by_critic`: advantages by token are a critic's, who judges again at each use; what is kept is the reward.
        """
        found: dict[str, list[TrainingRow]] = {}
        for row in rows:
            found.setdefault(row.trajectory, []).append(row)
        for name, own in found.items():
            judged = not by_critic or any(row.advantages is not None for row in own)
            priority = magnitude(own) if judged else math.inf
            if self._spec.admit != "all" and success.get(name, False) != (self._spec.admit == "successes"):
                self._count("not_asked_for")
            elif priority <= 0.0 or priority < self._spec.min_advantage:
                self._count("small_advantage")
            else:
                kept = [as_replayed(row) for row in own]
                for row in kept if by_critic else ():
                    row.advantages = None
                self._kept.append(Kept(name, own[0].group, step, priority, kept))
        self._make_room()

    def judge(self, drawn: Sequence[tuple["Drawn", Sequence[TrainingRow]]]) -> None:
        """Set the priorities of what was drawn by the advantages that its rows were given."""
        for one, rows in drawn:
            if any(row.advantages is not None for row in rows):
                one.kept.priority = magnitude(rows)

    def draw(self, step: int, steps: int, count: int) -> list[Drawn]:
        """Return what a step trains on again, after the old has left; each draw is one use."""
        self._retire(step)
        if not self._kept or count < 1:
            return []
        chances = probabilities(self.priorities(), self._spec.alpha)
        weights = importance_weights(chances, annealed(self._spec.beta, self._spec.beta_end, step, steps))
        most = max(weights)
        rng = random.Random(f"{self._seed}/replay/{step}")
        drawn = self._within_uses(chances, stratified(chances, min(count, len(self._kept)), rng), rng)
        found = [Drawn(self._kept[i], n, weights[i] / most) for i, n in sorted(drawn.items())]
        for one in found:
            one.kept.uses += one.times
        return found

    def _within_uses(self, chances: Sequence[float], drawn: Counter[int], rng: random.Random) -> Counter[int]:
        """Return the draws, those beyond what a trajectory may still be used for given to the others."""
        left = [self._spec.max_uses - one.uses for one in self._kept]
        while over := sum(max(0, n - left[i]) for i, n in drawn.items()):
            drawn = Counter({i: min(n, left[i]) for i, n in drawn.items()})
            drawn += stratified([p if drawn[i] < left[i] else 0.0 for i, p in enumerate(chances)], over, rng)
        return drawn

    def priorities(self) -> list[float]:
        """Return the priorities; what has none yet has the largest that is known."""
        known = [k.priority + self._spec.floor for k in self._kept if math.isfinite(k.priority)]
        largest = max(known, default=1.0)
        return [k.priority + self._spec.floor if math.isfinite(k.priority) else largest for k in self._kept]

    def _retire(self, step: int) -> None:
        kept: list[Kept] = []
        for one in self._kept:
            if step - one.step > self._spec.max_age:
                self._count("too_old")
            elif one.uses >= self._spec.max_uses:
                self._count("used_up")
            else:
                kept.append(one)
        self._kept = kept

    def _make_room(self) -> None:
        """Let the oldest groups go, each as a whole, until there is room."""
        while len(self._kept) > self._spec.capacity:
            oldest = self._kept[0].group
            gone = sum(k.group == oldest for k in self._kept)
            self._kept = [k for k in self._kept if k.group != oldest]
            self._count("no_room", gone)

    def _count(self, reason: str, count: int = 1) -> None:
        self.left[reason] = self.left.get(reason, 0) + count

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the whole buffer for a checkpoint; numbers keep every bit."""
        rows = [row for one in self._kept for row in one.rows]
        tensors = {
            f"{PREFIX}ids": torch.tensor([i for r in rows for i in r.ids], dtype=torch.int64),
            f"{PREFIX}mask": torch.tensor([m for r in rows for m in r.mask], dtype=torch.uint8),
        }
        for name in _COLUMNS:
            values = [v for r in rows for v in getattr(r, name) or [0.0] * len(r.ids)]
            tensors[f"{PREFIX}{name}"] = torch.tensor(values, dtype=torch.float64)
        kept: list[dict[str, Any]] = []
        for one in self._kept:
            told = {f.name: getattr(one, f.name) for f in fields(Kept) if f.name != "rows"}
            told["priority"] = one.priority if math.isfinite(one.priority) else None
            kept.append(told | {"rows": [_plain(r) for r in one.rows]})
        return tensors, {"kept": kept, "left": self.left}

    def load_state(self, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        columns = {n: tensors[f"{PREFIX}{n}"].tolist() for n in ("ids", "mask", *_COLUMNS)}
        at, found = 0, list[Kept]()
        for told in data["kept"]:
            own: list[TrainingRow] = []
            for plain in told["rows"]:
                end = at + plain["tokens"]
                own.append(_row(plain, {n: values[at:end] for n, values in columns.items()}))
                at = end
            priority = math.inf if told["priority"] is None else told["priority"]
            found.append(Kept(**{**told, "priority": priority, "rows": own}))
        self._kept, self.left = found, dict(data["left"])


_COLUMNS = ("sampler_logprobs", "advantages")
_PLAIN = ("id", "source", "temperature", "trajectory", "contexts", "group", "advantage")


def magnitude(rows: Sequence[TrainingRow]) -> float:
    """Return the mean |advantage| over a trajectory's trained tokens."""
    values = [
        abs(row.advantage if row.advantages is None else row.advantages[t])
        for row in rows
        for t, inside in enumerate(row.mask)
        if inside
    ]
    return sum(values) / len(values) if values else 0.0


def as_replayed(row: TrainingRow, weight: float = 1.0, importance: float = 1.0) -> TrainingRow:
    """Return a copy that is trained on later: as it was drawn, without what a step has added to it."""
    made = TrainingRow(
        **{n: getattr(row, n) for n in (*_PLAIN, "ids", "mask", *_COLUMNS)}, weight=weight, importance=importance
    )
    made.stale = True
    return made


def _plain(row: TrainingRow) -> dict[str, Any]:
    own = {n: v for n, v in asdict(row).items() if n in _PLAIN}
    return own | {"tokens": len(row.ids), "by_token": row.advantages is not None}


def _row(plain: Mapping[str, Any], columns: Mapping[str, list[Any]]) -> TrainingRow:
    made = TrainingRow(
        **{n: plain[n] for n in _PLAIN},
        ids=columns["ids"],
        mask=[bool(m) for m in columns["mask"]],
        sampler_logprobs=columns["sampler_logprobs"],
        advantages=columns["advantages"] if plain["by_token"] else None,
    )
    made.stale = True
    return made
