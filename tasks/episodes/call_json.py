"""Reading JSON that a policy wrote: strict, bounded, and never an exception."""

import json
import math
from typing import Any

MAX_CHARACTERS = 100_000
MAX_DEPTH = 64


class _Refused(ValueError):
    """The text is no JSON that we take."""


def read_json(text: str) -> tuple[Any, str | None]:
    """Return (data, None), or (None, why) for what is not strict JSON.

    Refused as well: repeated keys, NaN and infinities (1e999 too), integers of more than 18 digits, lone surrogates,
    more than MAX_DEPTH levels and more than MAX_CHARACTERS characters.
    """
    if len(text) > MAX_CHARACTERS:
        return None, f"more than {MAX_CHARACTERS} characters"
    if _depth(text) > MAX_DEPTH:
        return None, f"more than {MAX_DEPTH} levels"
    try:
        text.encode("utf-8")
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int)
        if "\\u" in text or "\\U" in text:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        return data, None
    except UnicodeEncodeError:
        return None, "a lone surrogate"
    except (ValueError, RecursionError) as e:
        return None, str(e)[:200]


def _depth(text: str) -> int:
    """Return the deepest nesting of brackets outside of strings."""
    deepest = depth = 0
    quoted = escaped = False
    for c in text:
        if quoted:
            quoted = escaped or c != '"'
            escaped = not escaped and c == "\\"
        elif c == '"':
            quoted = True
        elif c in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif c in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused("a repeated key")
    return found


def _constant(word: str) -> Any:
    raise _Refused(f"{word} is no JSON")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused("a number that is not finite")
    return value


def _int(digits: str) -> int:
    if len(digits) > 19:
        raise _Refused("an integer of more than 18 digits")
    return int(digits)
