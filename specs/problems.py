"""What the fields of a problem hold, where it comes from outside: from a file, or from a program of one's own."""

from collections.abc import Callable, Mapping
from typing import Any, cast


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _object(value: object) -> bool:
    return isinstance(value, dict)


def _count(value: object) -> bool:
    return type(value) is int and value >= 1


def _all(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(v, kind) for v in cast(list[object], value))


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("id", "environment", "type", "split", "text"), (_text, "a text that is not empty")),
    **dict.fromkeys(("world", "expected"), (_object, "an object")),
    "tags": (lambda v: _all(v, str), "a list of texts"),
    "min_calls": (_count, "a whole number of at least 1"),
    "tools": (lambda v: v is None or _all(v, dict), "a list of objects"),
}


def misfit(record: Mapping[str, Any]) -> str | None:
    """Return which field holds what it cannot, in words; None where all that are there are as they must be."""
    for name, (fits, expected) in _FIELDS.items():
        if name in record and not fits(record[name]):
            return f"{name} is {record[name]!r:.60}, expected {expected}"
    return None
