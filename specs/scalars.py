"""Plain YAML scalars after the core schema of YAML 1.2, strictly: numbers are finite, words stay words."""

import math
import re
from dataclasses import dataclass

Scalar = str | int | float | bool | None

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_FLAGS = {w: w.lower() == "true" for w in ("true", "True", "TRUE", "false", "False", "FALSE")}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MAX_DIGITS = 18
_CORE = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Bad:
    """A scalar that cannot stand in a program, and why."""

    text: str


def read_plain(text: str) -> Scalar | Bad:
    """Return the value of an unquoted scalar. Exponent notation that is whole gives an integer: `3e4` is 30000."""
    if text in _NULLS:
        return None
    if text in _FLAGS:
        return _FLAGS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) <= _MAX_DIGITS else Bad(f"found {text[:20]}…, expected a smaller number")
    if _BASED.fullmatch(text):
        return int(text, 0) if len(text) <= _MAX_DIGITS else Bad(f"found {text[:20]}…, expected a smaller number")
    if _NOT_FINITE.fullmatch(text):
        return Bad(f"found {text}, expected a finite number")
    if _NUMBER.fullmatch(text):
        return _number(text)
    return text


def _number(text: str) -> Scalar | Bad:
    value = float(text)
    if math.isinf(value):
        return Bad(f"found {text[:20]}, expected a finite number")
    mantissa, mark, _ = text.lower().partition("e")
    if value == 0.0 and any(c in "123456789" for c in mantissa):
        return Bad(f"found {text[:20]}, which is too small to hold")
    if mark and value.is_integer() and abs(value) < 10**_MAX_DIGITS and (value or "-" not in mantissa):
        return int(value)
    return value


def read_tagged(tag: str, text: str) -> Scalar | Bad:
    """Return the value of a quoted scalar, or of one with an explicit tag of the core schema."""
    kind = tag.removeprefix(_CORE)
    if kind in ("str", "!"):
        return text
    value = read_plain(text)
    fits = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "bool": isinstance(value, bool),
        "null": value is None,
    }
    if kind not in fits:
        return Bad(f"found the tag {tag.replace(_CORE, '!!')[:60]}, expected none; remove it")
    if isinstance(value, Bad):
        return value
    if not fits[kind]:
        return Bad(f"found a value that is no !!{kind}; remove the tag")
    return float(value) if kind == "float" and isinstance(value, int) else value
