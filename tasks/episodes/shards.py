"""Trajectories on disk: Parquet shards of one fixed schema, one summary row each, and JSON Lines for other tools.

The same trajectories give the same bytes; timings are no part of a shard (`write_latency`).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specs.errors import DataError, StateError
from specs.records import Trajectory, to_dict, trajectory_from
from tasks.files import write_durable

_PART_ROWS = 4096
_JSON = ("policy_versions", "turns", "sampling", "final_state", "verdicts", "reward_parts")
_NULL_OR_NUMBER = {"success": pa.bool_(), "reward": pa.float64()}

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("problem_id", pa.string()),
        ("problem_type", pa.string()),
        ("environment", pa.string()),
        ("environment_version", pa.string()),
        ("agent", pa.string()),
        ("group", pa.string()),
        ("sample", pa.int32()),
        ("seed", pa.int64()),
        ("ids", pa.list_(pa.int32())),
        ("sources", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("policy_versions", pa.string()),
        ("turns", pa.string()),
        ("status", pa.string()),
        ("sampling", pa.string()),
        ("final_state", pa.string()),
        ("answer", pa.string()),
        ("verdicts", pa.string()),
        *_NULL_OR_NUMBER.items(),
        ("reward_parts", pa.string()),
        ("error", pa.string()),
        ("origin", pa.string()),
        ("tags", pa.list_(pa.string())),
    ],
    metadata={"format": "tutelage trajectories 1"},
)
SUMMARY = pa.schema(
    [
        ("id", pa.string()),
        ("problem_id", pa.string()),
        ("type", pa.string()),
        ("group", pa.string()),
        ("sample", pa.int32()),
        ("status", pa.string()),
        *_NULL_OR_NUMBER.items(),
        ("policy_tokens", pa.int32()),
        ("turns", pa.int32()),
        ("tool_errors", pa.int32()),
        ("tags", pa.list_(pa.string())),
    ],
    metadata={"format": "tutelage summary 1"},
)


def write_shards(folder: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write `part-00000.parquet` … and `summary.parquet` into `folder`; return how many trajectories.

    DataError, naming the trajectory, where its token lists differ in length or a value is no JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    summary: list[dict[str, Any]] = []
    rows = iter(trajectories)
    part = 0
    while chunk := list(islice(rows, _PART_ROWS)):
        table = pa.Table.from_pylist([_row(t) for t in chunk], schema=SCHEMA)
        write_table(folder / f"part-{part:05d}.parquet", table)
        summary += [_summary(t) for t in chunk]
        part += 1
    write_table(folder / "summary.parquet", pa.Table.from_pylist(summary, schema=SUMMARY))
    return len(summary)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a file, whole or not at all."""
    buffer = BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=1024)
    write_durable(path, buffer.getvalue())


def _row(trajectory: Trajectory) -> dict[str, Any]:
    lengths = {len(trajectory.ids), len(trajectory.sources), len(trajectory.logprobs)}
    if len(lengths) > 1:
        raise DataError(
            f"trajectory {trajectory.id}: {len(trajectory.ids)} ids, {len(trajectory.sources)} sources and "
            f"{len(trajectory.logprobs)} logprobs, expected equally many"
        )
    data = to_dict(trajectory)
    del data["latency"]
    try:
        row = {**data, **{k: _text(data[k]) for k in _JSON}}
        for value in [*row.values(), *trajectory.tags]:
            if isinstance(value, str):
                value.encode()  # a lone surrogate is a ValueError
        return row
    except (TypeError, ValueError, RecursionError) as e:
        raise DataError(f"trajectory {trajectory.id}: holds what JSON cannot ({e})") from e


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def tool_errors(trajectory: Trajectory) -> int:
    """Return how many of its turns ended in a tool error."""
    return sum(t.observation is not None and t.observation.is_error for t in trajectory.turns)


def _summary(t: Trajectory) -> dict[str, Any]:
    return {
        "id": t.id,
        "problem_id": t.problem_id,
        "type": t.problem_type,
        "group": t.group,
        "sample": t.sample,
        "status": t.status,
        "success": t.success,
        "reward": t.reward,
        "policy_tokens": t.policy_tokens,
        "turns": len(t.turns),
        "tool_errors": tool_errors(t),
        "tags": t.tags,
    }


def read_shards(folder: Path) -> Iterator[Trajectory]:
    """Yield trajectories in the order in which they were written; StateError names a missing or damaged file."""
    expected = len(read_summary(folder))
    found = 0
    for number, path in enumerate(sorted(folder.glob("part-*.parquet"))):
        if path.name != f"part-{number:05d}.parquet":
            raise StateError(f"{folder}: part-{number:05d}.parquet is missing; restore it or run the node again")
        for row in read_table(path, SCHEMA):
            found += 1
            yield _trajectory(row, path)
    if found != expected:
        raise StateError(f"{folder}: holds {found} trajectories, but summary.parquet lists {expected}; a part is gone")


def told_apart(source: str, trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Return the trajectories under names that no other has, `source/number/id`: what trains is looked up by name.

    Rollouts of several stages may share one, and so do demonstrations of one problem.
    """
    return [replace(t, id=f"{source}/{number}/{t.id}") for number, t in enumerate(trajectories)]


def _trajectory(row: dict[str, Any], path: Path) -> Trajectory:
    try:
        data = {**row, **{k: None if row[k] is None else json.loads(row[k]) for k in _JSON}}
        return trajectory_from(data)
    except (TypeError, KeyError, ValueError) as e:
        raise StateError(f"{path}: trajectory {row.get('id')!r} is damaged ({e}); run the node again") from e


def read_summary(folder: Path) -> list[dict[str, Any]]:
    """Return one row per trajectory: id, problem_id, type, group, sample, status, success, reward and counts."""
    return list(read_table(folder / "summary.parquet", SUMMARY))


def read_table(path: Path, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; StateError where it is missing, damaged, or has other columns."""
    try:
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow
            if not found.equals(schema) or found.metadata != schema.metadata:
                raise StateError(f"{path}: has other columns than this version of tutelage writes; run the node again")
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as e:
        raise StateError(f"{path}: missing or damaged ({str(e)[:200]}); restore it or run the node again") from e


def write_latency(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write seconds by trajectory (model, tool, environment) as JSON Lines: for `notes/`, outside every digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": t.id, **{k: round(v, 6) for k, v in t.latency.items()}}) for t in trajectories]
    write_durable(path, "".join(f"{line}\n" for line in lines))
