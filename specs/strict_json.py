"""Strict JSON: what Python's own reader lets pass and a strict one does not is an error here."""

import json
import math
import re
from typing import Any

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half of a character."""


def parse(text: str) -> Any:
    """Return the value of a JSON text.

    ValueError for NaN, infinities, repeated keys, lone surrogates, and nesting without end.
    """
    try:
        text.encode()
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
        if _HALF.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    except UnicodeEncodeError as e:
        half = f"\\u{ord(e.object[e.start]):04x}"
        raise ValueError(f"a lone surrogate ({half}), which is no character and cannot be written") from None
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"repeated key {key!r}")
            seen.add(key)
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value
