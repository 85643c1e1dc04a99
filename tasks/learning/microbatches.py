"""How rows are laid out for the forward pass: padded side by side, or one prompt with its group behind it.

R sequences of the forward pass, L their padded length, N trained tokens, B rows, T padded row length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.learning.rows import TrainingRow

SHARING_PAYS = 0.6
"""A group's prompt is shared where that leaves at most this share of the tokens."""
LONGEST_SHARED = 4096
"""Most tokens of a sequence with a shared prompt; its attention mask is dense."""


@dataclass(slots=True)
class MicroBatch:
    """Inputs of one forward pass and where its results belong."""

    rows: list[int]
    """Indices of the step's rows, in the order of the B axis."""
    ids_RL: Tensor
    positions_RL: Tensor | None
    attention_RLL: Tensor | None
    """True where the token of axis 1 may see the one of axis 2; None is causal."""
    states_N: Tensor
    """Index into R*L of the hidden state that predicts each trained token."""
    targets_N: Tensor
    cells_N: Tensor
    """Index into B*T of each trained token."""
    shape: tuple[int, int]
    """(B, T)."""
    tokens: int
    """Real tokens of the forward pass."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Rows that share their first `prefix` tokens; a single row has a prefix of 0."""

    rows: tuple[int, ...]
    prefix: int
    length: int


def micro_batches(rows: Sequence[TrainingRow], max_tokens: int, *, share: bool) -> list[MicroBatch]:
    """Return the forward passes of a step: sequences of like length together, at most `max_tokens` padded tokens.

    A row longer than that stands alone, and so do those of a pair or a unit. Rows without a trained token are left out.
    """
    result: list[MicroBatch] = []
    current: list[_Sequence] = []
    for unit in _units(rows, _sequences(rows, max_tokens, share=share)):
        longest = max(s.length for s in unit)
        mixed = bool(current) and (current[0].prefix > 0) != (unit[0].prefix > 0)
        if current and (mixed or longest * (len(current) + len(unit)) > max_tokens):
            result.append(_lay_out(rows, current))
            current = []
        current += unit
    if current:
        result.append(_lay_out(rows, current))
    return result


def _units(rows: Sequence[TrainingRow], sequences: list[_Sequence]) -> list[list[_Sequence]]:
    """Return what must stand in one forward pass, shortest first: a sequence, or those of a pair or a unit."""
    units: dict[object, list[_Sequence]] = {}
    for item in sequences:
        first = rows[item.rows[0]]
        units.setdefault(first.pair or first.unit or item.rows, []).append(item)
    key = [((u[0].prefix > 0, max(s.length for s in u), u[0].rows), u) for u in units.values()]
    return [u for _, u in sorted(key, key=lambda k: k[0])]


def _sequences(rows: Sequence[TrainingRow], max_tokens: int, *, share: bool) -> list[_Sequence]:
    groups: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        if row.trained:
            groups.setdefault(row.group if share and row.group and not row.unit else i, []).append(i)
    result: list[_Sequence] = []
    for members in groups.values():
        prefix = _shared_prefix([rows[i] for i in members]) if len(members) > 1 else 0
        packed = prefix + sum(rows[i].length - prefix for i in members)
        if prefix and packed <= SHARING_PAYS * sum(rows[i].length for i in members):
            result += _cut(rows, members, prefix, min(max_tokens, LONGEST_SHARED))
        else:
            result += [_Sequence((i,), 0, rows[i].length) for i in members]
    return result


def _shared_prefix(rows: Sequence[TrainingRow]) -> int:
    """Return how many first tokens are the same in all rows and train in none."""
    limit = min(row.mask.index(True) for row in rows)
    first = rows[0].ids
    for row in rows[1:]:
        limit = next((t for t in range(limit) if row.ids[t] != first[t]), limit)
    return limit


def _cut(rows: Sequence[TrainingRow], members: list[int], prefix: int, max_tokens: int) -> list[_Sequence]:
    result: list[_Sequence] = []
    current: list[int] = []
    length = prefix
    for i in members:
        extra = rows[i].length - prefix
        if current and length + extra > max_tokens:
            result.append(_Sequence(tuple(current), prefix, length))
            current, length = [], prefix
        current.append(i)
        length += extra
    return [*result, _Sequence(tuple(current), prefix, length)]


@dataclass(slots=True)
class _Layout:
    """A micro-batch being filled."""

    width: int
    columns: int
    ids_RL: Tensor
    positions_RL: Tensor | None
    attention_RLL: Tensor | None
    states: list[int]
    targets: list[int]
    cells: list[int]

    def place_prefix(self, r: int, ids: list[int]) -> None:
        """Put the prompt that rows share at the front of sequence r."""
        n = len(ids)
        self.ids_RL[r, :n] = torch.tensor(ids)
        if self.positions_RL is not None and self.attention_RLL is not None:
            self.positions_RL[r, :n] = torch.arange(n)
            self.attention_RLL[r, :n, :n] = torch.ones(n, n, dtype=torch.bool).tril()

    def place_row(self, r: int, b: int, at: int, prefix: int, row: TrainingRow) -> int:
        """Put what follows the prefix at position `at` of sequence r; return the position after it."""
        end = at + row.length - prefix
        self.ids_RL[r, at:end] = torch.tensor(row.ids[prefix : row.length])
        if self.positions_RL is not None and self.attention_RLL is not None:
            self.positions_RL[r, at:end] = torch.arange(prefix, row.length)
            self.attention_RLL[r, at:end, :prefix] = True
            self.attention_RLL[r, at:end, at:end] = torch.ones(end - at, end - at, dtype=torch.bool).tril()
        for t in range(prefix, row.length):
            if row.mask[t]:
                before = prefix - 1 if t == prefix else at + t - prefix - 1
                self.states.append(r * self.width + before)
                self.targets.append(row.ids[t])
                self.cells.append(b * self.columns + t)
        return end


def _lay_out(rows: Sequence[TrainingRow], sequences: list[_Sequence]) -> MicroBatch:
    shared = sequences[0].prefix > 0
    width = max(s.length for s in sequences)
    order = [i for s in sequences for i in s.rows]
    columns = max(rows[i].length for i in order)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    attention = torch.zeros(len(sequences), width, width, dtype=torch.bool) if shared else None
    layout = _Layout(width, columns, ids, torch.zeros_like(ids) if shared else None, attention, [], [], [])
    b = 0
    for r, sequence in enumerate(sequences):
        at = sequence.prefix
        if at:
            layout.place_prefix(r, rows[sequence.rows[0]].ids[:at])
        for i in sequence.rows:
            at = layout.place_row(r, b, at, sequence.prefix, rows[i])
            b += 1
        if attention is not None:
            attention[r, at:, 0] = True  # padding must see something, or its softmax is not a number
    return MicroBatch(
        rows=order,
        ids_RL=ids,
        positions_RL=layout.positions_RL,
        attention_RLL=attention,
        states_N=torch.tensor(layout.states),
        targets_N=torch.tensor(layout.targets),
        cells_N=torch.tensor(layout.cells),
        shape=(len(order), columns),
        tokens=sum(s.length for s in sequences),
    )
