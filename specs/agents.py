"""Agents: the scaffold between policy and environment."""

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Discriminator, Tag

from specs.base import Count, Spec
from specs.commands import Command


class ToolLoop(Spec):
    """One tool call a turn, until the episode ends."""

    kind: Literal["tool_loop"] = "tool_loop"
    call_format: Literal["flat", "nested", "react"] = "flat"
    """`{"tool": name, argument: value}`; `{"name": name, "arguments": {…}}`; or the text form of ReAct, a thought, the
    action's name and its input in three lines."""
    max_new_tokens: Count = 40
    """Tokens that the policy may write in one turn."""


class ExternalAgent(Command):
    """An agent of your own: a program that is run once per episode against a gateway (docs/bring_your_own.md)."""

    kind: Literal["external"]
    version: ClassVar[int] = 2
    call_format: Literal["flat", "nested"] = "flat"
    """How the policy writes a call where the agent offers tools in a chat."""
    max_new_tokens: Count = 40
    """Tokens that the policy may write in one reply; a request may ask for fewer."""
    max_requests: Count = 32
    """Replies that the policy gives in one episode."""
    token_drift: Literal["split", "drop"] = "split"
    """What becomes of an episode in which a prompt leaves out or changes what was sampled before: `split` trains the
    parts as contexts of their own, `drop` trains none of it."""


def _kind(value: Any) -> str:
    """Return which agent is meant; one without a kind is a tool loop."""
    if isinstance(value, dict):
        return str(cast("dict[str, Any]", value).get("kind", "tool_loop"))
    return str(getattr(value, "kind", "tool_loop"))


Agent = Annotated[
    Annotated[ToolLoop, Tag("tool_loop")] | Annotated[ExternalAgent, Tag("external")], Discriminator(_kind)
]
