"""Agents: how a call is written and read. `agent_for` is the one place where a spec becomes an agent."""

import re
from collections.abc import Sequence
from typing import Any, assert_never

from specs.agents import Agent, ExternalAgent, ToolLoop
from specs.errors import DataError
from specs.records import ToolCall
from tasks.episodes.call_json import MAX_CHARACTERS, read_json
from tasks.episodes.schemas import argument_error
from tasks.protocols import ToolSchema
from tasks.tokens.text import call_text


def agent_for(spec: Agent) -> "ToolLoopAgent":
    """Return the agent that a spec names."""
    match spec:
        case ToolLoop():
            return ToolLoopAgent(spec)
        case ExternalAgent():
            return ExternalScaffold(spec)
        case _:
            assert_never(spec)


_INSTRUCTIONS = {
    "flat": 'Reply with one JSON call: {"tool": ..., argument: value, ...}',
    "nested": 'Reply with one JSON call: {"name": ..., "arguments": {...}}',
    "react": "Reply in three lines. Thought: what to do next. Action: a tool's name. Action Input: a JSON object",
}
_REACT = re.compile(r"(?:.*\n)?Action:[ ]*(?P<name>[^\n]*)\nAction Input:(?P<input>.*)", re.DOTALL)
"""The last action of a text counts: what stands before it is thought."""


class ToolLoopAgent:
    """One tool call a turn: one JSON object and nothing else, or thought and action in the text form of ReAct."""

    def __init__(self, spec: ToolLoop | ExternalAgent) -> None:
        self.spec = spec
        self.name = f"{spec.kind}/{spec.call_format}@1"
        self.instruction = _INSTRUCTIONS[spec.call_format]

    def write(self, call: ToolCall) -> str:
        """Return a call as the policy should write it. DataError where its arguments are no JSON object."""
        return call_text(call.name, arguments_of(call.arguments, call.name), self.spec.call_format)

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> ToolCall:
        """Return the call in `text`, checked against its tool's schema; never raises.

        `error` says why it cannot be used: malformed_json, not_an_object, unknown_tool, missing_argument,
        unknown_argument or wrong_type.
        """
        data, problem = self._read(text)
        if problem is not None:
            return ToolCall("", {}, text, "malformed_json")
        if not isinstance(data, dict):
            return ToolCall("", {}, text, "not_an_object")
        name, arguments, error = self._split(data)
        if error is not None:
            return ToolCall(name, {}, text, error)
        tool = next((t for t in tools if t.name == name), None)
        error = "unknown_tool" if tool is None else argument_error(arguments, tool.parameters)
        return ToolCall(name, arguments, text, error)

    def _read(self, text: str) -> tuple[Any, str | None]:
        """Return the JSON of a call, or why there is none; an action as a nested call."""
        if self.spec.call_format != "react":
            return read_json(text)
        found = _REACT.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
        if found is None:
            return None, "no Action with an Action Input"
        arguments, problem = read_json(found["input"])
        return {"name": found["name"].strip(), "arguments": arguments}, problem

    def _split(self, data: dict[str, Any]) -> tuple[str, dict[str, Any], str | None]:
        if self.spec.call_format == "flat":
            name = data.get("tool")
            arguments: Any = {k: v for k, v in data.items() if k != "tool"}
        else:
            name, arguments = data.get("name"), data.get("arguments", {})
        if not isinstance(name, str):
            return "", {}, "unknown_tool"
        if not isinstance(arguments, dict):
            return name, {}, "not_an_object"
        if self.spec.call_format != "flat" and data.keys() - {"name", "arguments"}:
            return name, arguments, "unknown_argument"
        return name, arguments, None


class ExternalScaffold(ToolLoopAgent):
    """An agent of the user's own: it runs as a program (`tasks.episodes.external`); calls are written as in a tool loop."""

    def __init__(self, spec: ExternalAgent) -> None:
        super().__init__(spec)
        self.spec: ExternalAgent = spec
        self.name = f"external/{spec.call_format}@{ExternalAgent.version}"


def arguments_of(value: Any, where: str) -> dict[str, Any]:
    """Return a call's arguments from an object, or from the text of one (API logs keep them as text), once decoded.

    DataError, naming `where`, for anything else.
    """
    if isinstance(value, str):
        value, problem = read_json(value)
        if problem is not None:
            raise DataError(f"{where}: arguments are no JSON ({problem}); expected a JSON object")
    if not isinstance(value, dict):
        raise DataError(f"{where}: arguments are {type(value).__name__}, expected a JSON object")
    return value
