"""Comparing JSON values and tool calls by value and type; nothing here raises for what a policy wrote."""

import math
import re
import unicodedata
from typing import Any

from specs import strict_json

_IGNORED = re.compile(r"[ ,./\-_*^]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def same_json(a: Any, b: Any) -> bool:
    """Return whether two JSON values are the same; a switch is no number, a whole number no fraction."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same_json(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def differences(expected: Any, found: Any, limit: int = 5) -> list[dict[str, Any]]:
    """Return the first places where two JSON values differ: `{"at", "expected", "found"}`."""
    found_at: list[dict[str, Any]] = []
    pending = [("", expected, found)]
    while pending and len(found_at) < limit:
        at, a, b = pending.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            keys = sorted({*a, *b}, key=str, reverse=True)
            pending += [(f"{at}.{k}" if at else str(k), a.get(k), b.get(k)) for k in keys]
        elif not same_json(a, b):
            found_at.append({"at": at, "expected": shown(a), "found": shown(b)})
    return found_at


def shown(value: Any) -> Any:
    """Return a value as evidence shows it: short, and writable as strict JSON whatever a policy wrote."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and value.bit_length() <= 64):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text[:200].encode("utf-8", "replace").decode()


def call_difference(call: Any, expected: dict[str, Any]) -> dict[str, Any] | None:
    """Return why a call `{"name", "arguments"}` is not the expected one, or None where it is.

    `expected` holds `name`, `arguments` (allowed values by argument; "" among them: may be left out) and `required`
    (arguments that must be given all the same). Arguments may be an object or the JSON text of one.
    """
    arguments = _arguments(call)
    if arguments is None:
        return {"reason": "malformed"}
    if call.get("name") != expected["name"]:
        return {"reason": "name", "expected": expected["name"], "found": shown(call.get("name"))}
    allowed, required = expected["arguments"], expected.get("required", ())
    for key, value in arguments.items():
        if key not in allowed:
            return {"reason": "extra_argument", "argument": shown(key)}
        if not _allows(allowed[key], value):
            kind = "value" if any(_same_kind(value, a) for a in allowed[key]) else "type"
            return {"reason": kind, "argument": key, "expected": shown(allowed[key]), "found": shown(value)}
    for key, values in allowed.items():
        if key not in arguments and (key in required or not _optional(values)):
            return {"reason": "missing_argument", "argument": key}
    return None


def call_share(call: Any, expected: dict[str, Any]) -> float:
    """Return the share of a call that is right: of its name and of all arguments that are given or that must be.

    0 where the name is another function's; takes what `call_difference` does.
    """
    arguments = _arguments(call)
    if arguments is None or call.get("name") != expected["name"]:
        return 0.0
    allowed, required = expected["arguments"], expected.get("required", ())
    needed = {k for k, values in allowed.items() if k in required or not _optional(values)}
    right = sum(k in allowed and _allows(allowed[k], v) for k, v in arguments.items())
    return (1 + right) / (1 + len(needed | arguments.keys()))


def _arguments(call: Any) -> dict[str, Any] | None:
    arguments = call.get("arguments") if isinstance(call, dict) else None
    if isinstance(arguments, str):
        try:
            arguments = strict_json.parse(arguments)
        except ValueError:
            return None
    return arguments if isinstance(arguments, dict) else None


def _optional(values: list[Any]) -> bool:
    return any(isinstance(v, str) and v == "" for v in values)


def _allows(values: list[Any], value: Any) -> bool:
    """Return whether a value is among the allowed ones; "" there is only itself, never a text of mere marks."""
    return any(_matches(value, a) for a in values if a != "" or value == "")


def _matches(value: Any, allowed: Any) -> bool:
    """Return whether a value is what an allowed value stands for; objects hold lists of alternatives by key."""
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed
    if isinstance(value, int | float) and isinstance(allowed, int | float):
        return _same_number(value, allowed)
    if isinstance(value, str) and isinstance(allowed, str):
        return _same_text(value, allowed)
    if isinstance(value, list | tuple) and isinstance(allowed, list | tuple):
        return len(value) == len(allowed) and all(_matches(v, a) for v, a in zip(value, allowed, strict=True))
    if isinstance(value, dict) and isinstance(allowed, dict):
        return _matches_object(value, allowed)
    return value is None and allowed is None


def _matches_object(value: dict[str, Any], allowed: dict[str, Any]) -> bool:
    lists = {k: a if isinstance(a, list) else [a] for k, a in allowed.items()}
    if any(k not in lists or not _allows(lists[k], v) for k, v in value.items()):
        return False
    return all(k in value or _optional(a) for k, a in lists.items())


def _same_number(value: int | float, allowed: int | float) -> bool:
    if value == allowed:
        return True
    try:
        return math.isclose(value, allowed, rel_tol=1e-9)
    except OverflowError:  # a whole number beyond what a float holds
        return False


def _same_text(value: str, allowed: str) -> bool:
    """Return whether two texts agree but for case, spaces and light punctuation; numbers agree as numbers."""
    if _NUMBER.fullmatch(value) and _NUMBER.fullmatch(allowed):
        return float(value) == float(allowed)
    return _plain_text(value) == _plain_text(allowed)


def _plain_text(text: str) -> str:
    return _IGNORED.sub("", unicodedata.normalize("NFC", text)).lower().replace("'", '"')


def _same_kind(value: Any, allowed: Any) -> bool:
    if isinstance(value, bool) or isinstance(allowed, bool):
        return isinstance(value, bool) and isinstance(allowed, bool)
    kinds = ((int, float), (str,), (list, tuple), (dict,))
    return any(isinstance(value, k) and isinstance(allowed, k) for k in kinds) or (value is None and allowed is None)
