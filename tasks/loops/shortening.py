"""Short rollouts within on-policy distillation: a length for the next step, and which tokens of this one count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, assert_never

from specs.records import Trajectory
from specs.short_opd import ByConfidence, ByGap, ByRepetition, Segments, ShortOPD, Tokens
from tasks.learning.rows import TrainingRow
from tasks.learning.shortening import first_part, kept_tokens, kept_turns, loop_start, runs

_MOST = 0.5
"""Share of cut rollouts from which, where these do not train, a length is too short."""


@dataclass(slots=True)
class _Seen:
    """Shares of completions by step since the length was last considered."""

    looping: list[float] = field(default_factory=list[float])
    cut: list[float] = field(default_factory=list[float])


class Shortening:
    """The shape of a `short_opd` stage's rollouts."""

    def __init__(self, spec: ShortOPD, longest: int) -> None:
        """`longest` is what the agent allows a completion."""
        self.spec = spec
        self.length = _first(spec, longest)
        self._longest = longest
        self._seen = _Seen()
        self._step = 0

    def limit(self, step: int) -> int:
        """Return the most tokens of a completion."""
        self._step = step
        return self.length

    # --- which tokens count

    def weigh(self, rows: Sequence[TrainingRow], divergences: Sequence[Sequence[float]]) -> dict[str, float]:
        """Take the weight from tokens that do not teach; a step that is mostly loops keeps none.

        Demonstrations train too, but lengths are found by the policy's own rollouts alone.
        """
        masks = [[m and w > 0 for m, w in zip(r.mask, r.distill or [], strict=True)] for r in rows]
        trained = sum(map(sum, masks))
        kept, figures = masks, dict[str, float]()
        if isinstance(self.spec.length, ByRepetition):
            kept, figures = self._without_loops(rows, masks, divergences, self.spec.length)
        share = self.spec.horizon + (1 - self.spec.horizon) * self._step / max(1, self.spec.steps - 1)
        if share < 1:
            first = [first_part(m, share) for m in masks]
            kept = [_both(a, b) for a, b in zip(kept, first, strict=True)]
        kept = self._selected(kept, divergences)
        for row, inside in zip(rows, kept, strict=True):
            row.distill = [w if k else 0.0 for w, k in zip(row.distill or [], inside, strict=True)]
        figures |= {"kept_tokens": sum(map(sum, kept)) / max(1, trained), "completion_limit": float(self.length)}
        own = [
            d
            for row, m, v in zip(rows, masks, divergences, strict=True)
            for d, i in zip(v, m, strict=True)
            if i and _own(row)
        ]
        return figures | ({"gap": sum(own) / len(own)} if own else {})

    def _selected(self, masks: list[list[bool]], divergences: Sequence[Sequence[float]]) -> list[list[bool]]:
        match self.spec.select:
            case None:
                return masks
            case Tokens() as spec:
                return kept_tokens(divergences, masks, spec)
            case Segments() as spec:
                return [kept_turns(v, m, spec) for v, m in zip(divergences, masks, strict=True)]
            case _:
                assert_never(self.spec.select)

    def _without_loops(
        self,
        rows: Sequence[TrainingRow],
        masks: Sequence[list[bool]],
        divergences: Sequence[Sequence[float]],
        spec: ByRepetition,
    ) -> tuple[list[list[bool]], dict[str, float]]:
        """Take out loops that the teacher finds predictable too."""
        kept = [list(m) for m in masks]
        turns = looping = 0
        for row, inside, values in zip(rows, kept, divergences, strict=True):
            for turn in runs(row.mask):
                turns += _own(row)
                start = loop_start([row.ids[t] for t in turn], spec)
                loop = [] if start is None else turn[start:]
                if loop and fmean(values[t] for t in loop) <= spec.agreed:
                    looping += _own(row)
                    for t in loop:
                        inside[t] = False
        before, after = (sum(sum(m) for r, m in zip(rows, some, strict=True) if _own(r)) for some in (masks, kept))
        if not turns:
            return kept, {}
        self._seen.looping.append(looping / turns)
        figures = {"looping": self._seen.looping[-1], "outside_loops": after / max(1, before)}
        if before and after / before < spec.least_kept:
            self.length = max(spec.least, math.floor(spec.shrink * self.length))
            return [[False] * len(m) for m in masks], figures
        return kept, figures

    # --- the next length

    def learn(self, trajectories: Sequence[Trajectory], figures: dict[str, float]) -> None:
        """Find the length of the next step; where nothing is known it stays, or grows where rollouts were cut and left out."""
        match self.spec.length:
            case ByGap() as spec:
                self.length = self._of_three(figures.get("gap"), spec.bounds, spec.lengths, trajectories)
            case ByConfidence() as spec:
                sure = _confidence(trajectories)
                bounds = (-spec.bounds[1], -spec.bounds[0])
                self.length = self._of_three(None if sure is None else -sure, bounds, spec.lengths, trajectories)
            case ByRepetition() as spec:
                turns = [turn for t in trajectories for turn in t.turns]
                self._seen.cut.append(sum(turn.finish == "length" for turn in turns) / max(1, len(turns)))
                if len(self._seen.cut) >= spec.every:
                    looping = fmean(self._seen.looping) if self._seen.looping else 0.0
                    self.length = _by_repetition(self.length, looping, fmean(self._seen.cut), spec)
                    self._seen = _Seen()
            case _:
                assert_never(self.spec.length)
        self.length = min(self.length, self._longest)

    def _of_three(
        self,
        value: float | None,
        bounds: tuple[float, float],
        lengths: tuple[int, int, int],
        trajectories: Sequence[Trajectory],
    ) -> int:
        if self.spec.truncated == "mask" and _cut(trajectories) > _MOST:
            return next((n for n in lengths if n > self.length), lengths[-1])
        if value is None:
            return self.length
        return lengths[0] if value < bounds[0] else lengths[1] if value < bounds[1] else lengths[2]

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {"length": self.length, "looping": self._seen.looping, "cut": self._seen.cut}

    def load_state(self, data: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.length, self._seen = data["length"], _Seen(data["looping"], data["cut"])


def _first(spec: ShortOPD, longest: int) -> int:
    """Return the length of the first step: nothing is known of the policy yet."""
    length = spec.length
    return min(longest, length.start if isinstance(length, ByRepetition) else length.lengths[1])


def _by_repetition(length: int, looping: float, cut: float, spec: ByRepetition) -> int:
    if looping > spec.shrink_above:
        return max(spec.least, math.floor(spec.shrink * length))
    if looping < spec.grow_below and cut > spec.cut_above:
        return min(spec.most, math.ceil(spec.grow * length))
    return length


def _own(row: TrainingRow) -> bool:
    """Return whether the policy wrote a row, and not a demonstration."""
    return row.sampler_logprobs is not None


def _cut(trajectories: Sequence[Trajectory]) -> float:
    return sum(t.status == "truncated" for t in trajectories) / max(1, len(trajectories))


def _confidence(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the mean probability of the tokens that the policy wrote; None where there is none."""
    chances = [math.exp(t.logprobs[i]) for t in trajectories for turn in t.turns for i in range(turn.start, turn.end)]
    return fmean(chances) if chances else None


def _both(one: Sequence[bool], other: Sequence[bool]) -> list[bool]:
    return [a and b for a, b in zip(one, other, strict=True)]
