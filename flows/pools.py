"""Published pools of a program: numbered versions, each written whole or not at all and never changed. Torch-free.

`<home>/pools/<program>/<pool>/v<number>/` holds `records.jsonl` and `version.json`. The ledger of cases is kept the same
way, as the pool `cases`, and what rounds trained on as the pool `trained`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.durable import write_dir, write_durable, write_json
from flows.leases import short_lock
from specs.errors import StateError
from specs.strict_json import parse

Json = dict[str, Any]
CASES = "cases"
REGRESSION = "regression"
TRAINED = "trained"
"""Id, type and text of every sibling that rounds made for training: none of them may be held back to judge later."""
ANSWERED = "answered"
"""What people said of cases (`flows.confirming`)."""
RECORDS = "records.jsonl"
VERSION = "version.json"


@dataclass(frozen=True, slots=True)
class PoolVersion:
    """One version of a pool. `path` is its folder, from the home."""

    pool: str
    version: int
    digest: str
    """sha256 of its records."""
    rows: int
    path: str
    about: Json = field(default_factory=dict[str, Any])
    """What published it."""

    def resolved(self) -> Json:
        """Return what a plan has to know of it."""
        return {"version": self.version, "digest": self.digest, "rows": self.rows, "path": self.path}


def versions(home: Path, program: str, pool: str) -> list[PoolVersion]:
    """Return the versions of a pool, oldest first. StateError where one cannot be read."""
    folder = home / "pools" / program / pool
    numbers = sorted(int(p.name[1:]) for p in folder.glob("v*") if p.name[1:].isdigit())
    return [_read(home, folder / f"v{n}") for n in numbers]


def newest(home: Path, program: str, pool: str) -> PoolVersion | None:
    """Return the newest version of a pool; None where none was published yet."""
    found = versions(home, program, pool)
    return found[-1] if found else None


def records(home: Path, version: PoolVersion | Mapping[str, Any]) -> list[Json]:
    """Return the records of a version, checked against its digest. StateError where they are gone or damaged."""
    known = version.resolved() if isinstance(version, PoolVersion) else version
    path = home / known["path"] / RECORDS
    try:
        data = path.read_bytes()
    except OSError as e:
        raise StateError(
            f"{path}: a published pool lost its records ({e.strerror}); restore it from a copy, or remove its folder to "
            "go back to the version before"
        ) from e
    if (found := hashlib.sha256(data).hexdigest()) != known["digest"]:
        raise StateError(
            f"{path}: a published pool is damaged (sha256 {found[:12]}…, published {known['digest'][:12]}…); restore it "
            "from a copy, or remove its folder to go back to the version before"
        )
    return [parse(line) for line in data.decode().splitlines() if line]


def publish(home: Path, program: str, pool: str, rows: Iterable[Mapping[str, Any]], about: Json) -> PoolVersion:
    """Publish records as the newest version and return it; the same records as in the newest one publish nothing."""
    lines = [json.dumps(dict(r), sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n" for r in rows]
    text = "".join(lines)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with short_lock(home / "pools" / ".lock"):
        last = newest(home, program, pool)
        if last is not None and last.digest == digest:
            return last
        number = 1 if last is None else last.version + 1
        path = Path("pools") / program / pool / f"v{number}"
        made = PoolVersion(pool, number, digest, len(lines), path.as_posix(), about)

        def fill(folder: Path) -> None:
            write_durable(folder / RECORDS, text)
            write_json(folder / VERSION, asdict(made))

        write_dir(home / path, fill)
    return made


def cases(home: Path, program: str) -> list[Json]:
    """Return the newest ledger of a program's cases; empty where none was published."""
    found = newest(home, program, CASES)
    return [] if found is None else records(home, found)


def programs(home: Path) -> list[str]:
    """Return the programs that published a pool."""
    return sorted(p.name for p in (home / "pools").glob("*") if p.is_dir() and not p.name.startswith("."))


def _read(home: Path, folder: Path) -> PoolVersion:
    path = folder / VERSION
    try:
        made = PoolVersion(**parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as e:
        raise StateError(
            f"{path}: damaged version of a pool ({e}); restore it from a copy, or remove {folder} to go back to the "
            "version before"
        ) from e
    return replace(made, path=folder.relative_to(home).as_posix())
