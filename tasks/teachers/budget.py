"""What calls cost, and what may be spent: dollars are reserved before a request is sent. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specs.errors import BudgetError
from specs.teachers import Price

_TOKENS_PER_MESSAGE = 16
"""Of the marks that a template sets around a message."""


class InFlightError(BudgetError):
    """Requests in flight may yet bring back what is needed: each reserved the most that it can cost."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that may be spent: on one teacher, and by the program on all of them."""

    usd: float | None = None
    calls: int | None = None
    program_usd: float | None = None


@dataclass(slots=True)
class Spent:
    """What was spent: paid, and reserved by requests whose end is not known."""

    usd: float = 0.0
    requests: int = 0
    factor: float = 1.0
    """Most that a counted request cost, as a multiple of what was expected at most; never below 1."""


def prompt_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Return the most tokens that messages have: one for each byte, and those around them.

    JSON, digits and most scripts come near to that in one vocabulary or another.
    """
    return sum(len(m["content"].encode()) + _TOKENS_PER_MESSAGE for m in messages)


def dollars(price: Price | None, tokens_in: int, tokens_out: int) -> float:
    """Return what so many tokens cost; nothing where no price is declared."""
    if price is None:
        return 0.0
    return (tokens_in * price.input + tokens_out * price.output) / 1e6


def check(teacher: str, caps: Caps, own: Spent, program: Spent, usd: float) -> None:
    """Raise BudgetError where one more request that may cost `usd` would pass a cap."""
    if caps.calls is not None and own.requests + 1 > caps.calls:
        raise BudgetError(
            f"budget_exhausted: teacher {teacher}: {own.requests} requests sent, cap_calls is {caps.calls}; "
            f"raise teachers.{teacher}.cap_calls and run again: what was answered is kept"
        )
    if caps.usd is not None and own.usd + usd > caps.usd:
        raise BudgetError(
            f"budget_exhausted: teacher {teacher}: ${own.usd:.4f} spent or reserved, the next call may cost ${usd:.4f}, "
            f"cap_usd is {caps.usd:g}; raise teachers.{teacher}.cap_usd and run again: what was answered is kept"
        )
    if caps.program_usd is not None and program.usd + usd > caps.program_usd:
        raise BudgetError(
            f"budget_exhausted: ${program.usd:.4f} spent or reserved for teachers, the next call of {teacher} may cost "
            f"${usd:.4f}, budget.teacher_usd is {caps.program_usd:g}; raise it and run again: what was answered is kept"
        )
