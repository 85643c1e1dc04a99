"""What reward models train on: trajectories judged at their end, or turns with their labels; and how right they are.

A row trains the token after what is judged: the number of a state is read where the next token would be predicted.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean
from typing import Any

from specs.errors import TrainingError
from specs.records import NOT_TRAINED, Pair, Trajectory
from specs.reward_models import TurnLabels
from tasks.learning.rows import TrainingRow

Labels = dict[str, list[float]]
"""By trajectory, a number from 0 to 1 for each turn."""


@dataclass(slots=True)
class Labelled:
    """Labels of turns, and the trajectories that have none."""

    labels: Labels = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """Return how many turns are labelled."""
        return sum(len(values) for values in self.labels.values())


def label_turns(trajectories: Sequence[Trajectory], spec: TurnLabels) -> Labelled:
    """Label the turns of judged trajectories; those without a verdict, cut or not in one context are left out, counted."""
    found = Labelled()
    kept: list[Trajectory] = []
    for trajectory in trajectories:
        reason = _unusable(trajectory)
        if reason is None:
            kept.append(trajectory)
        else:
            found.dropped[reason] = found.dropped.get(reason, 0) + 1
    if spec.by == "visits":
        found.labels = _by_visits(kept)
    elif spec.by == "outcome":
        found.labels = {t.id: [float(bool(t.success))] * len(t.turns) for t in kept}
    else:
        found.labels = {t.id: _by_calls(t) for t in kept}
    return found


def _unusable(trajectory: Trajectory) -> str | None:
    if trajectory.status == "infrastructure" or trajectory.success is None:
        return "invalid"
    if trajectory.status == "truncated":
        return "truncated"
    if len(trajectory.segments) > 1:
        return "several_contexts"
    if NOT_TRAINED in trajectory.tags:
        return "token_drift"
    return None if trajectory.turns else "no_turn"


def _by_visits(trajectories: Sequence[Trajectory]) -> Labels:
    """Return for each turn the success of all trajectories of its problem that wrote the same up to and with it."""
    outcomes: dict[Hashable, list[float]] = {}
    paths = {t.id: _paths(t) for t in trajectories}
    for t in trajectories:
        for path in paths[t.id]:
            outcomes.setdefault(path, []).append(float(bool(t.success)))
    return {t.id: [fmean(outcomes[path]) for path in paths[t.id]] for t in trajectories}


def _paths(trajectory: Trajectory) -> list[Hashable]:
    texts = [turn.text for turn in trajectory.turns]
    return [(trajectory.problem_id, *texts[: k + 1]) for k in range(len(texts))]


def _by_calls(trajectory: Trajectory) -> list[float]:
    """Return 1 for a turn whose call changed the state, informed or ended the episode as it should, else 0."""
    labels: list[float] = []
    for turn in trajectory.turns:
        seen = turn.observation
        ended = seen is not None and seen.done and bool(trajectory.success)
        useful = seen is not None and not seen.is_error and (seen.changed or seen.informed or ended)
        labels.append(float(useful))
    return labels


def turn_rows(
    trajectories: Sequence[Trajectory], labels: Mapping[str, list[float]], max_length: int
) -> tuple[list[TrainingRow], dict[str, int]]:
    """Return a row of each labelled trajectory that is judged after each of its turns, and what was left out by reason."""
    rows: list[TrainingRow] = []
    dropped: dict[str, int] = {}
    for t in trajectories:
        if t.id not in labels:
            continue
        row = judged(t, [turn.end for turn in t.turns], labels[t.id], max_length)
        if row is None:
            dropped["too_long"] = dropped.get("too_long", 0) + 1
        else:
            rows.append(row)
    return rows, dropped


def judged(trajectory: Trajectory, ends: Sequence[int], labels: Sequence[float], max_length: int) -> TrainingRow | None:
    """Return a row that is judged after these counts of tokens; None where none lies within the length.

    A turn that wrote nothing is judged with the one before it.
    """
    at = {end: label for end, label in zip(ends, labels, strict=True) if 0 < end < max_length}
    if not at:
        return None
    last = max(at)
    ids = [*trajectory.ids[: last + 1], 0][: last + 1]
    return TrainingRow(
        id=trajectory.id,
        source=trajectory.problem_id,
        trajectory=trajectory.id,
        ids=ids,
        mask=[t in at for t in range(len(ids))],
        advantages=[at.get(t, 0.0) for t in range(len(ids))],
    )


def side_rows(
    pairs: Sequence[Pair], trajectories: Mapping[str, Trajectory], max_length: int
) -> tuple[list[TrainingRow], dict[str, int]]:
    """Return two rows of each pair, judged at their ends; pairs of which a side is too long are left out, counted."""
    rows: list[TrainingRow] = []
    dropped: dict[str, int] = {}
    for pair in pairs:
        sides = [trajectories[name] for name in (pair.chosen, pair.rejected)]
        made = [judged(t, [len(t.ids)], [0.0], max_length) for t in sides]
        both = [row for row in made if row is not None]
        if len(both) < 2:
            dropped["too_long"] = dropped.get("too_long", 0) + 1
            continue
        for row, preferred in zip(both, (True, False), strict=True):
            row.pair, row.preferred, row.weight, row.baseline = pair.id, preferred, pair.weight, pair.margin
        rows += both
    total = sum(row.weight for row in rows)
    for row in rows:
        row.weight *= len(rows) / total  # a mean of 1 over all
    return rows, dropped


def held_out(problems: Iterable[str], share: float, seed: int) -> set[str]:
    """Return the problems that are held out: that share of them, one at least; the same for equal seeds."""
    known = sorted(set(problems), key=lambda p: hashlib.sha256(f"{seed}/held-out/{p}".encode()).digest())
    return set(known[: max(1, round(share * len(known)))])


@dataclass(frozen=True, slots=True)
class Order:
    """How often what is better got the higher number; a tie counts a half."""

    right: float
    count: int

    @property
    def share(self) -> float:
        """Return the share in the right order; 0.5, a guess, where there is nothing to compare."""
        return self.right / self.count if self.count else 0.5

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"accuracy": self.share, "compared": self.count}


def pair_order(rows: Sequence[TrainingRow], numbers: Sequence[list[float]]) -> Order:
    """Return how many pairs of rows (chosen, then rejected) are in the right order."""
    last = [values[row.length - 1] for row, values in zip(rows, numbers, strict=True)]
    return _order(zip(last[::2], last[1::2], strict=True))


def turn_order(rows: Sequence[TrainingRow], numbers: Sequence[list[float]]) -> Order:
    """Return how many pairs of a better and a worse turn, of one problem, are in the right order."""
    judged_turns = [
        (row.source, y, v)
        for row, values in zip(rows, numbers, strict=True)
        for m, y, v in zip(row.mask, row.advantages or [], values, strict=True)
        if m
    ]
    compared: list[tuple[float, float]] = []
    for _, turns in groupby(sorted(judged_turns), key=lambda t: t[0]):
        of_problem = [(y, v) for _, y, v in turns]
        compared += [(v, w) for y, v in of_problem for z, w in of_problem if y > z]
    return _order(compared)


def _order(compared: Iterable[tuple[float, float]]) -> Order:
    found = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in compared]
    return Order(sum(found), len(found))


def require_order(order: Order, least: float, stage: str, what: str) -> None:
    """Raise TrainingError where a reward model is no better than it may be on what it never saw."""
    if order.count == 0 and least > 0:
        raise TrainingError(
            f"stage {stage}: no held-out problem has {what}, so nobody knows whether the reward model is right; "
            "draw more problems or raise held_out"
        )
    if order.share < least:
        raise TrainingError(
            f"stage {stage}: on {order.count} held-out {what} the reward model is right {order.share:.0%} of the time, "
            f"expected at least least_accuracy, {least:.0%}; a reward that cannot tell right from wrong was not handed "
            "on. Ways out: more problems or samples, more epochs, another learning rate, pairs that differ more"
        )
