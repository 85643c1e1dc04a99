"""Environments: worlds in which episodes run, and what their demonstrations look like."""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from specs.base import Count, Name, Share, Spec
from specs.commands import Command

OrderType = Literal[
    "stock", "status", "mail", "place", "cancel", "substitute", "replace",
    "unknown_customer", "duplicate_order", "already_shipped", "discount", "timeout_resubmit", "repeated_mail",
]  # fmt: skip
"""Problem types of the order desk; those of the second line are adversarial."""
ORDINARY: tuple[OrderType, ...] = get_args(OrderType)[:7]
ADVERSARIAL: tuple[OrderType, ...] = get_args(OrderType)[7:]
CALLS: dict[OrderType, tuple[int, ...]] = {
    "stock": (2,), "status": (2,), "mail": (2, 3), "place": (2, 4), "cancel": (3,), "substitute": (2, 4, 5),
    "replace": (3, 4), "unknown_customer": (2,), "duplicate_order": (3, 4), "already_shipped": (3,),
    "discount": (1, 2), "timeout_resubmit": (5, 6), "repeated_mail": (3,),
}  # fmt: skip
"""Calls that problems of each type take."""
EVENTS: dict[str, tuple[str, ...]] = {
    "order_desk": (
        "apply_discount_without_authority", "cancelled_shipped_order", "duplicate_order", "repeated_mail",
    ),
    "bfcl": (),
    "process": (),
}  # fmt: skip
"""Named events that each kind of environment reports; `tool_trace` may forbid them."""


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
    version: ClassVar[int] = 1
    siblings: ClassVar[bool] = True  # it makes other problems of a type (`tasks.protocols.Environment.sibling`)
    max_turns: Count = 8
    types: Annotated[list[OrderType], Field(min_length=1)] | None = None
    """Problem types drawn, one named twice twice as often. Where left out: every ordinary type, and on the training
    split `substitute`, `replace` and `cancel` twice as often."""
    adversarial: Share = 0.0
    """Share of problems that are adversarial (unknown customer, duplicate order and so on)."""
    faults: list[ToolFault] = []
    latency_ms: Annotated[float, Field(ge=0.0)] = 0.0
    """Wait of every tool call."""


class BFCL(Spec):
    """Single-turn function calling from the Berkeley Function Calling Leaderboard package."""

    kind: Literal["bfcl"]
    version: ClassVar[int] = 1
    siblings: ClassVar[bool] = False
    categories: list[Literal["simple_python", "multiple", "live_simple"]] = ["simple_python", "multiple"]
    max_turns: Count = 1
    train_share: Share = 0.6
    """Share of called functions whose problems are for training; the rest is held out."""
    hint_length: Annotated[int, Field(ge=0)] = 40
    """Characters of each argument's description shown in the prompt."""
    distractors: Annotated[int, Field(ge=0, le=8)] = 0
    """Functions of other problems added to each prompt."""


class ProcessEnvironment(Command):
    """A world of your own: any program that speaks JSON lines (docs/bring_your_own.md)."""

    kind: Literal["process"]
    version: ClassVar[int] = 1
    siblings: ClassVar[bool] = False
    max_turns: Count = 8
    events: list[str] = []
    """Named events that it may report with an observation; `tool_trace` may forbid them."""


Environment = Annotated[OrderDesk | BFCL | ProcessEnvironment, Field(discriminator="kind")]
Environments = dict[Name, Environment]


def calls_of(spec: Environment) -> set[int]:
    """Return how many calls the problems of its generator may take; none where it makes no new ones."""
    if not isinstance(spec, OrderDesk):
        return set()
    types: list[OrderType] = [*(spec.types or ORDINARY), *(ADVERSARIAL if spec.adversarial else ())]
    return {calls for kind in types for calls in CALLS[kind] if calls <= spec.max_turns}


def events_of(spec: Environment) -> tuple[str, ...]:
    """Return the named events that an environment may report."""
    return tuple(spec.events) if isinstance(spec, ProcessEnvironment) else EVENTS[spec.kind]
