"""What teachers said of single tokens, on disk: `teachers.parquet` beside the shards of the trajectories that they scored."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.episodes.shards import read_table, write_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE = "teachers.parquet"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("problem_type", pa.string()),
        ("start", pa.int32()),
        ("teacher", pa.string()),
        ("revision", pa.string()),
        ("weight", pa.float64()),
        ("tokens", pa.int32()),
        ("logprobs", pa.list_(pa.float32())),
        ("chunks", pa.list_(pa.int32())),
    ],
    metadata={"format": "tutelage teachers 1"},
)


@dataclass(frozen=True, slots=True)
class TokenSignal:
    """What one teacher said of one trajectory, or of one context of it."""

    id: str
    """Of the trajectory."""
    problem_type: str
    start: int
    """Where what it read begins in the trajectory's ids."""
    teacher: str
    """Name in the roster."""
    revision: str
    """Who scored: kind and digest of the weights, or name and revision under which they are served."""
    weight: float
    """Its share among the teachers of these tokens."""
    tokens: int
    """Tokens of the policy about which it said something."""
    logprobs: "NDArray[np.float32] | None" = None
    """By token from `start` on, NaN where it said nothing; None where whole distributions were compared in this process."""
    chunks: "NDArray[np.int32] | None" = None
    """By token, the number of its chunk, -1 outside: the logprobs of a chunk count as a sum. None: each token by itself."""


def write_signals(folder: Path, signals: Iterable[TokenSignal]) -> None:
    """Write what teachers said of the trajectories in `folder`. The same signals give the same bytes."""
    rows = [{name: getattr(s, name) for name in SCHEMA.names} for s in signals]
    write_table(folder / FILE, pa.Table.from_pylist(rows, schema=SCHEMA))


def read_signals(folder: Path) -> Iterator[TokenSignal]:
    """Yield the signals in the order in which they were written; StateError where the file is missing or damaged."""
    for row in read_table(folder / FILE, SCHEMA):
        columns = {"logprobs": _array(row["logprobs"], np.float32), "chunks": _array(row["chunks"], np.int32)}
        yield TokenSignal(**{**row, **columns})


def _array(values: Sequence[float] | None, dtype: type) -> "NDArray | None":
    return None if values is None else np.array(values, dtype)
