"""A strict reader of problem files: every line is accounted for, or the file is refused with the line's number."""

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from specs import strict_json
from specs.errors import DataError
from specs.problems import misfit
from specs.records import Problem

_BOM = b"\xef\xbb\xbf"
_DEFAULTS = {"type": "file", "split": "file"}
_NEEDED = ("id", "text", "expected")
_FIELDS = tuple(f.name for f in fields(Problem))


def read_lines(path: Path, *, digest: str | None = None) -> list[tuple[int, dict[str, Any]]]:
    """Return (line number, object) of each line that is not blank.

    One byte-order mark at the start, CRLF and blank lines change nothing. DataError for anything that is not one
    strict JSON object a line, for a file without records, and where `digest` (sha256) is given and differs.
    """
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise DataError(f"{path}: cannot be read ({e.strerror}); expected a JSONL file of problems") from e
    if digest is not None and (found := hashlib.sha256(raw).hexdigest()) != digest:
        raise DataError(
            f"{path}: changed since it was planned (sha256 {found[:12]}…, planned {digest[:12]}…); plan again"
        )
    records = [
        (number, _record(path, number, line))
        for number, line in enumerate(raw.removeprefix(_BOM).split(b"\n"), 1)
        if line.strip()
    ]
    if not records:
        raise DataError(f"{path}: holds no record; expected one JSON object a line")
    return records


def read_problems(path: Path, environment: str, *, digest: str | None = None) -> list[tuple[int, Problem]]:
    """Return (line number, problem) of each record; DataError with the line for what is missing, unknown or twice."""
    found: list[tuple[int, Problem]] = []
    seen: dict[str, int] = {}
    for number, record in read_lines(path, digest=digest):
        problem = _problem(f"{path}:{number}", record, environment)
        if problem.id in seen:
            raise DataError(f"{path}:{number}: the id {problem.id!r} stands in line {seen[problem.id]} too")
        seen[problem.id] = number
        found.append((number, problem))
    return found


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    where = f"{path}:{number}"
    if line.startswith(_BOM):
        raise DataError(f"{where}: a byte-order mark in the middle of the file; join files without their marks")
    try:
        record = strict_json.parse(line.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise DataError(f"{where}: not UTF-8 at byte {e.start}; save the file as UTF-8") from e
    except ValueError as e:
        raise DataError(f"{where}: {e}; expected one strict JSON object") from e
    if not isinstance(record, dict):
        raise DataError(f"{where}: found a {type(record).__name__}, expected a JSON object")
    return record


def _problem(where: str, record: dict[str, Any], environment: str) -> Problem:
    for key in record:
        if key not in _FIELDS:
            raise DataError(f"{where}: unknown field {key!r}; expected some of {', '.join(_FIELDS)}")
    if (wrong := misfit(record)) is not None:
        raise DataError(f"{where}: {wrong}")
    for key in _NEEDED:
        if key not in record:
            raise DataError(f"{where}: the field {key!r} is missing")
    if record.get("environment", environment) != environment:
        raise DataError(f"{where}: environment {record['environment']!r} is not the data set's {environment!r}")
    return Problem(**{"environment": environment, "world": {}, **_DEFAULTS, **record})
