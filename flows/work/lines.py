"""JSON Lines between nodes: records as the bodies of a round write and read them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specs.errors import DataError
from specs.records import to_dict
from tasks.files import write_durable


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file. DataError names the line that cannot be read."""
    with path.open(encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                yield json.loads(line)
            except ValueError as e:
                raise DataError(f"{path}:{number}: cannot be read ({e}); run the node that makes it again") from e


def write_rows(path: Path, records: Iterable[Any]) -> None:
    """Write records, whole or not at all; plain data as it is, others by `to_dict`."""
    rows = (r if isinstance(r, dict) else to_dict(r) for r in records)
    write_durable(path, "".join(json.dumps(r, sort_keys=True, allow_nan=False) + "\n" for r in rows))
