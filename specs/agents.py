"""Agents: the scaffold between policy and environment."""

from typing import Literal

from specs.base import Count, Spec


class ToolLoop(Spec):
    """One tool call a turn, until the episode ends."""

    kind: Literal["tool_loop"] = "tool_loop"
    call_format: Literal["flat", "nested"] = "flat"
    """`{"tool": name, argument: value}` or `{"name": name, "arguments": {…}}`."""
    max_new_tokens: Count = 40
    """Tokens that the policy may write in one turn."""


Agent = ToolLoop
