"""Environments: worlds in which episodes run, and what their demonstrations look like."""

from typing import Annotated, Literal

from pydantic import Field

from specs.base import Count, Name, Share, Spec


class ToolFault(Spec):
    """A fault injected into tool calls by declaration (robustness)."""

    tool: str = "*"
    """Tool it strikes; `*` is any."""
    error: Literal["timeout", "unavailable"] = "unavailable"
    probability: Share = 0.0
    applied: Share = 0.0
    """Share of these faults after which the call took effect all the same."""


class OrderDesk(Spec):
    """Customers, products, stock, orders and mail on SQLite."""

    kind: Literal["order_desk"]
    max_turns: Count = 8
    types: list[str] | None = None
    """Problem types drawn; all of them where left out."""
    adversarial: Share = 0.0
    """Share of problems that are adversarial (unknown customer, duplicate order and so on)."""
    faults: list[ToolFault] = []
    latency_ms: Annotated[float, Field(ge=0.0)] = 0.0
    """Wait of every tool call."""


class BFCL(Spec):
    """Single-turn function calling from the Berkeley Function Calling Leaderboard package."""

    kind: Literal["bfcl"]
    categories: list[Literal["simple_python", "multiple", "live_simple"]] = ["simple_python", "multiple"]
    max_turns: Count = 1
    train_share: Share = 0.6
    """Share of called functions whose problems are for training; the rest is held out."""
    hint_length: Annotated[int, Field(ge=0)] = 40
    """Characters of each argument's description shown in the prompt."""
    distractors: Annotated[int, Field(ge=0, le=8)] = 0
    """Functions of other problems added to each prompt."""


Environment = Annotated[OrderDesk | BFCL, Field(discriminator="kind")]
Environments = dict[Name, Environment]
