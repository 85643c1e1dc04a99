"""The JSON text of calls and observations, and the fragments of it that never change.

One place decides how a call or an observation is written, so that demonstrations, rollouts and the tokenizer agree.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from tasks.protocols import ToolSchema

CallFormat = Literal["flat", "nested", "react"]

CALL_ERRORS = (
    "malformed_json", "not_an_object", "unknown_tool", "missing_argument", "unknown_argument", "wrong_type"
)  # fmt: skip
"""What a call that cannot be used is answered with."""

_TEXT, _NUMBER = "\\u0000", "\\u0001"
_WHOLE_SHARE = 0.02
_WHOLE_LENGTH = 40


def compact_json(data: Any) -> str:
    """Return JSON without spaces, characters as they are. ValueError for a number that is not finite."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def call_text(name: str, arguments: dict[str, Any], call_format: CallFormat) -> str:
    """Return a call as the policy writes it: flat without spaces, nested with the spaces pretrained models write.

    In the text form of ReAct the thought says in words what the action is; a policy's own may say more.
    """
    if call_format == "flat":
        return compact_json({"tool": name, **arguments})
    if call_format == "react":
        return f"Thought: {name.replace('_', ' ')}\nAction: {name}\nAction Input: {compact_json(arguments)}"
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, allow_nan=False)


def fragments(
    tools: Iterable[ToolSchema], call_format: CallFormat, observations: Iterable[dict[str, Any]]
) -> list[str]:
    """Return the unchanging pieces of the tools' calls and of observations, each once, in a fixed order.

    A piece runs from the end of one value to the start of the next, as `{"tool":"check_stock","product":"`
    or `","quantity":`. An observation without a text value that is seen often is a piece as a whole (`{"ok":1}`).
    """
    pieces = dict.fromkeys(_call_pieces(tools, call_format))
    pieces.update(dict.fromkeys(_observation_pieces(observations)))
    return [p for p in pieces if len(p) > 1]


def _call_pieces(tools: Iterable[ToolSchema], call_format: CallFormat) -> Iterator[str]:
    comma, colon = (", ", ": ") if call_format == "nested" else (",", ":")
    close = "}}" if call_format == "nested" else "}"
    if call_format == "react":
        yield "Thought:"
    for tool in tools:
        start, first = _opening(tool.name, call_format)
        properties: dict[str, Any] = tool.parameters.get("properties", {})
        if not properties:
            yield start + close
        for index, (key, schema) in enumerate(properties.items()):
            quote = '"' if schema.get("type") == "string" else ""
            body = f"{json.dumps(key)}{colon}{quote}"
            if index == 0:
                yield f"{start}{first}{body}"
            yield f'"{comma}{body}'
            yield f"{comma}{body}"
    yield f'"{close}'


def _opening(name: str, call_format: CallFormat) -> tuple[str, str]:
    """Return what a call begins with, and what stands before its first argument."""
    match call_format:
        case "flat":
            return f'{{"tool":{json.dumps(name)}', ","
        case "nested":
            return f'{{"name": {json.dumps(name)}, "arguments": {{', ""
        case "react":
            return f"\nAction: {name}\nAction Input: {{", ""


def _observation_pieces(observations: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield '{"error":"'
    yield from (compact_json({"error": label}) for label in CALL_ERRORS)
    seen: Counter[str] = Counter()
    whole: set[str] = set()
    pieces: set[str] = set()
    for data in observations:
        text = compact_json(data)
        seen[text] += 1
        if seen[text] == 1:
            blank = compact_json(_blank(data))
            if _TEXT not in blank:
                whole.add(text)
            pieces.update(blank.replace(f'"{_NUMBER}"', _TEXT).split(_TEXT))
    yield from sorted(pieces)
    least = max(2.0, _WHOLE_SHARE * seen.total())
    yield from sorted(t for t in whole if seen[t] >= least and len(t) <= _WHOLE_LENGTH)


def _blank(data: Any) -> Any:
    """Return `data` with every text and number replaced by a mark."""
    match data:
        case str():
            return "\x00"
        case bool() | None:
            return data
        case int() | float():
            return "\x01"
        case dict():
            return {k: _blank(v) for k, v in data.items()}
        case _:
            return [_blank(v) for v in data]
