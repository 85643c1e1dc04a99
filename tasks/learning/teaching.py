"""What teachers say about a batch of rollouts, on its way into the learner: spans, weights, columns.

M teachers, B rows of a micro-batch, T tokens, N trained tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specs.distillation import Distillation, StateWeights
from specs.records import Trajectory, Turn
from tasks.learning.distilling import Distilled, Evidence, Hidden, Lists, Question, distill, measure_of
from tasks.learning.microbatches import MicroBatch
from tasks.learning.rows import TrainingRow
from tasks.protocols import ListingTeacher, Span, TokenLists, TokenScores, TokenTeacher, VocabularyTeacher

Weights = Callable[[Trajectory], Sequence[float]]
"""The teachers' weights for a trajectory, in their order; 0: it is not asked."""


def span_of(row: TrainingRow, trajectory: Trajectory) -> Span:
    """Return what a teacher is asked about a row."""
    return Span(trajectory, row.start, row.ids, row.mask)


def normalized(weights: Sequence[float]) -> list[float]:
    """Return weights that sum to 1; as they are where none counts."""
    total = sum(weights)
    return [w / total for w in weights] if total > 0 else list(weights)


def ask(rows: Sequence[TrainingRow], teachers: Sequence[TokenTeacher], trajectories: Mapping[str, Trajectory]) -> None:
    """Give each row the scores of the teachers that have a weight for it."""
    silent = {id(row): TokenScores([math.nan] * len(row.ids)) for row in rows}
    for row in rows:
        row.scores = []
    for m, teacher in enumerate(teachers):
        asked = [row for row in rows if row.teacher_weights and row.teacher_weights[m] > 0]
        found = teacher.score([span_of(row, trajectories[row.trajectory]) for row in asked])
        by_row = {id(row): _whole(scores, row.mask) for row, scores in zip(asked, found, strict=True)}
        for row in rows:
            assert row.scores is not None
            row.scores.append(by_row.get(id(row), silent[id(row)]))


def take_lists(
    rows: Sequence[TrainingRow], teachers: Sequence[TokenTeacher], trajectories: Mapping[str, Trajectory], size: int
) -> None:
    """Give each row the likeliest tokens of the teachers that list them; one that lists none for a row loses its weight."""
    for row in rows:
        row.lists = list[TokenLists | None]([None] * len(teachers))
    for m, teacher in enumerate(teachers):
        if not isinstance(teacher, ListingTeacher):
            continue
        asked = [row for row in rows if row.trained and row.teacher_weights and row.teacher_weights[m] > 0]
        found = teacher.lists([span_of(row, trajectories[row.trajectory]) for row in asked], size)
        for row, listed in zip(asked, found, strict=True):
            assert row.lists is not None
            assert row.teacher_weights is not None
            row.lists[m] = listed
            if listed is None:
                row.teacher_weights = normalized([0.0 if n == m else w for n, w in enumerate(row.teacher_weights)])


def covered(row: TrainingRow) -> list[bool]:
    """Return which tokens train and have a teacher; a token of a chunk of which a part does not train has none."""
    if row.scores is None:
        told = bool(row.teacher_weights) and sum(row.teacher_weights or []) > 0
        return [m and told for m in row.mask]
    found = [False] * len(row.ids)
    for scores, weight in zip(row.scores, row.teacher_weights or [], strict=True):
        if weight > 0:
            found = [a or b for a, b in zip(found, _whole_chunks(scores, row.mask), strict=True)]
    return found


def _whole(scores: TokenScores, mask: Sequence[bool]) -> TokenScores:
    """Return the scores without those of chunks that do not train as a whole: what a chunk says is of all its tokens."""
    if scores.chunks is None:
        return scores
    kept = _whole_chunks(scores, mask)
    return TokenScores(
        [p if k else math.nan for p, k in zip(scores.logprobs, kept, strict=True)],
        [c if k else -1 for c, k in zip(scores.chunks, kept, strict=True)],
    )


def _whole_chunks(scores: TokenScores, mask: Sequence[bool]) -> list[bool]:
    """Return which tokens a teacher says something of, without those of a chunk that is not whole."""
    given = [m and math.isfinite(p) for m, p in zip(mask, scores.logprobs, strict=True)]
    if scores.chunks is None:
        return given
    broken = {c for c, g in zip(scores.chunks, given, strict=True) if not g}
    return [g and c >= 0 and c not in broken for g, c in zip(given, scores.chunks, strict=True)]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Tokens that train, and those of them that a teacher says something about."""

    tokens: int
    covered: int

    @property
    def share(self) -> float:
        """Return the covered share; 1 where nothing trains."""
        return self.covered / self.tokens if self.tokens else 1.0


def weigh(
    rows: Sequence[TrainingRow],
    spec: Distillation,
    trajectories: Mapping[str, Trajectory],
    *,
    by_trajectory: bool = False,
    factor: Callable[[Trajectory], float] = lambda _: 1.0,
) -> Coverage:
    """Give the rows the weights of their tokens in the distillation term; those of all rows sum to 1.

    `by_trajectory`: each counts the same whatever its length. `factor` multiplies a trajectory's weights afterwards.
    """
    tokens = found = 0
    totals: dict[str, float] = {}
    for row in rows:
        inside = covered(row)
        tokens, found = tokens + row.trained, found + sum(inside)
        turns = _turn_weights(trajectories[row.trajectory], spec.states, row) if spec.states else [1.0] * len(inside)
        row.distill = [w if i else 0.0 for w, i in zip(turns, inside, strict=True)]
        totals[row.trajectory] = totals.get(row.trajectory, 0.0) + sum(row.distill)
    counts: dict[str, float] = {}
    for row in rows:
        trajectory, total = trajectories[row.trajectory], totals[row.trajectory]
        own = max(0.0, trajectory.reward or 0.0) if spec.token_weights == "reward" and row.sampler_logprobs else 1.0
        counts[row.trajectory] = own / total if by_trajectory and total > 0 else own
    whole = sum(counts[name] * total for name, total in totals.items())
    for row in rows:
        share = counts[row.trajectory] * factor(trajectories[row.trajectory]) / whole if whole > 0 else 0.0
        row.distill = [w * share for w in row.distill or []]
    return Coverage(tokens, found)


def _turn_weights(trajectory: Trajectory, spec: StateWeights, row: TrainingRow) -> list[float]:
    """Return the weight of each token of a row by where its turn stands to the first error; 1 where it succeeded."""
    values = [1.0] * len(trajectory.ids)
    wrong = first_wrong(trajectory)
    recovered = False
    for number, turn in enumerate(trajectory.turns):
        if wrong is None or number < wrong:
            continue
        weight = spec.wrong if number == wrong else max(spec.least, spec.later ** (number - wrong))
        if number > wrong and not recovered and not _failed(turn):
            recovered, weight = True, spec.recovery
        values[turn.start : turn.end] = [weight] * (turn.end - turn.start)
    return values[row.start : row.start + len(row.ids)]


def first_wrong(trajectory: Trajectory) -> int | None:
    """Return the first turn whose call was invalid or failed, in a trajectory that did not succeed; else None."""
    if trajectory.success:
        return None
    return next((n for n, turn in enumerate(trajectory.turns) if _failed(turn)), None)


def _failed(turn: Turn) -> bool:
    observed = turn.observation
    return turn.call is None or turn.call.error is not None or (observed is not None and observed.is_error)


class Distiller:
    """Compares policy and teachers over the vocabulary within the learner's forward pass, for the rows of one batch."""

    def __init__(
        self,
        spec: Distillation,
        teachers: Sequence[VocabularyTeacher | ListingTeacher],
        trajectories: Mapping[str, Trajectory],
        *,
        alone: bool,
    ) -> None:
        self.alone = alone
        """No other loss reads the policy's logprobs, so that they need no gradient."""
        self._measures = {own: measure_of(spec, own_tokens=own) for own in (True, False)}
        self._teachers = teachers
        self._trajectories = trajectories

    def __call__(self, rows: Sequence[TrainingRow], micro: MicroBatch, states_ND: Tensor, head_VD: Tensor) -> Distilled:
        """Return the weighted divergences of a micro-batch's trained tokens."""
        device, chosen = states_ND.device, [rows[i] for i in micro.rows]
        counts = torch.tensor([row.trained for row in chosen])
        weights = [w for row in chosen for w, m in zip(row.distill or [0.0] * len(row.ids), row.mask, strict=True) if m]
        weights_N = torch.tensor(weights, device=device)
        temperatures_N = torch.tensor([row.temperature for row in chosen]).repeat_interleave(counts).to(device)
        own_N = torch.tensor([row.sampler_logprobs is not None for row in chosen]).repeat_interleave(counts).to(device)
        evidence, targets_N = self._evidence(chosen, counts, device), micro.targets_N.to(device)
        parts: list[tuple[Tensor, Distilled]] = []
        for own, measure in self._measures.items():
            index = torch.nonzero(own_N == own)[:, 0]
            if len(index) == 0:
                continue
            some = index if len(index) < len(own_N) else slice(None)
            asked = Question(targets_N[some], weights_N[some], evidence.part(some), measure, temperatures_N[some])
            parts.append((index, distill(states_ND[some], head_VD, asked)))
        return parts[0][1] if len(parts) == 1 else _joined(parts, len(own_N))

    def _evidence(self, chosen: list[TrainingRow], counts: Tensor, device: torch.device) -> Evidence:
        """Return what every teacher makes of the trained tokens; nothing in rows about which it is not asked."""
        given = torch.tensor([row.teacher_weights or [0.0] * len(self._teachers) for row in chosen], device=device).t()
        found = [
            _listed(chosen, m, device)
            if isinstance(teacher, ListingTeacher)
            else self._hidden(teacher, chosen, given[m] > 0, counts)
            for m, teacher in enumerate(self._teachers)
        ]
        return Evidence(found, given.repeat_interleave(counts.to(device), 1))

    def _hidden(self, teacher: VocabularyTeacher, chosen: list[TrainingRow], asked: Tensor, counts: Tensor) -> Hidden:
        """Return the hidden states at the trained tokens; 0 in rows about which it is not asked."""
        rows = [row for row, a in zip(chosen, asked.tolist(), strict=True) if a]
        found = teacher.states([span_of(row, self._trajectories[row.trajectory]) for row in rows]).to(asked.device)
        if len(rows) < len(chosen):
            whole = found.new_zeros(int(counts.sum()), teacher.head_weight.shape[1])
            whole[asked.repeat_interleave(counts.to(asked.device))] = found
            found = whole
        return Hidden(found, teacher.head_weight)


def _listed(chosen: list[TrainingRow], m: int, device: torch.device) -> Lists:
    """Return the likeliest tokens of a teacher at the trained tokens; any, all alike, in rows of which it lists none."""
    by_row = [row.lists[m] if row.lists else None for row in chosen]
    size = next((x.ids_NK.shape[1] for x in by_row if x is not None), 1)
    parts = [x or _any_list(row.trained, size) for x, row in zip(by_row, chosen, strict=True)]
    ids, logprobs, targets = (
        torch.from_numpy(np.concatenate([getattr(p, name) for p in parts])).to(device)
        for name in ("ids_NK", "logprobs_NK", "targets_N")
    )
    return Lists(ids, logprobs, targets)


def _any_list(count: int, size: int) -> TokenLists:
    ids = np.tile(np.arange(size, dtype=np.int64), (count, 1))
    return TokenLists(ids, np.full((count, size), -np.log(2 * size), np.float32), np.full(count, np.nan, np.float32))


def _joined(parts: Sequence[tuple[Tensor, Distilled]], count: int) -> Distilled:
    """Return one result of several disjoint parts of N tokens."""
    first = parts[0][1]
    columns = [first.divergence_N.new_zeros(count) for _ in range(3)]
    figures: dict[str, Tensor] = {}
    for index, part in parts:
        for column, values in zip(columns, (part.divergence_N, part.logprobs_N, part.entropy_N), strict=True):
            column[index] = values
        for name, value in part.figures.items():
            figures[name] = figures.get(name, torch.zeros_like(value)) + value
    return Distilled(sum((p.loss for _, p in parts[1:]), first.loss), columns[0], columns[1], columns[2], figures)


def teacher_columns(
    rows: Sequence[TrainingRow], columns: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return logprobs MBT, chunks MBT and weights MB of what the teachers said; None where they were not asked."""
    if not rows or any(row.scores is None for row in rows):
        return None, None, None
    count = len(rows[0].scores or [])
    logprobs = torch.full((count, len(rows), columns), math.nan)
    chunks = torch.full((count, len(rows), columns), -1, dtype=torch.long)
    shared = False
    for b, row in enumerate(rows):
        for m, scores in enumerate(row.scores or []):
            length = min(columns, len(scores.logprobs))
            logprobs[m, b, :length] = torch.tensor(scores.logprobs[:length])
            shared = shared or scores.chunks is not None
            numbers = torch.arange(length) if scores.chunks is None else torch.tensor(scores.chunks[:length])
            chunks[m, b, :length] = numbers
    weights = torch.tensor([row.teacher_weights or [1.0] * count for row in rows]).t()
    return logprobs.to(device), chunks.to(device) if shared else None, weights.to(device)
