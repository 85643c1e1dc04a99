"""Which tokens of a success are taught: whole turns that hold a call, or the names and argument values of calls alone."""

import json
from collections.abc import Iterator
from typing import Any

from specs.records import ToolCall, Trajectory, Turn
from tasks.tokens.tokenizer import Tokenizer


def action_tokens(trajectory: Trajectory) -> list[bool]:
    """Return True at the tokens of turns whose call could be used."""
    inside = [False] * len(trajectory.ids)
    for turn in trajectory.turns:
        if turn.call is not None and turn.call.error is None:
            inside[turn.start : turn.end] = [True] * (turn.end - turn.start)
    return inside


def call_tokens(trajectory: Trajectory, tokenizer: Tokenizer) -> list[bool]:
    """Return True at the tokens that write a usable call's name or the values of its arguments."""
    inside = [False] * len(trajectory.ids)
    for turn in trajectory.turns:
        if turn.call is None or turn.call.error is not None:
            continue
        wanted = list(_places(turn, turn.call))
        for at, (start, end) in enumerate(tokenizer.spans(trajectory.ids[turn.start : turn.end]), turn.start):
            inside[at] = any(start < last and first < end for first, last in wanted)
    return inside


def _places(turn: Turn, call: ToolCall) -> Iterator[tuple[int, int]]:
    """Yield the byte spans of name and values in what was written, each looked for after the one before."""
    data, at = turn.text.encode(), 0
    for piece in (call.name, *_values(call.arguments)):
        for text in (json.dumps(piece, ensure_ascii=False), json.dumps(piece)):
            written = (text[1:-1] if isinstance(piece, str) else text).encode()
            found = data.find(written, at)
            if written and found >= 0:
                at = found + len(written)
                yield found, at
                break


def _values(arguments: Any) -> Iterator[Any]:
    if isinstance(arguments, dict):
        for value in arguments.values():
            yield from _values(value)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _values(value)
    else:
        yield arguments
