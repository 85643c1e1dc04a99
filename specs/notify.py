"""Who is told what of a run. Execution half: never part of any content key; addresses are references only."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from specs.base import Positive, Spec
from specs.redaction import REFERENCE

Happening = Literal[
    "completed", "promoted", "gate_failed", "held", "needs_person", "node_failed", "run_failed", "budget", "interrupted",
    "crashed",
]  # fmt: skip


def _reference(text: str) -> str:
    if not REFERENCE.fullmatch(text):
        raise ValueError(
            "expected a reference such as ${env:NOTIFY_URL}: who knows the address of a webhook may write there, "
            "so it is a secret; put it into the environment"
        )
    return text


class Notify(Spec):
    """A command or a webhook that is told what happened, as JSON; it never fails a run."""

    on: Annotated[list[Happening], Field(min_length=1)] = [
        "gate_failed",
        "held",
        "needs_person",
        "node_failed",
        "run_failed",
        "budget",
    ]
    """What is told. `run_failed`: a scheduled run ended before its first node. `crashed` is told by the next run."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Program and arguments, run without a shell; it reads the event on stdin. `${env:NAME}` is read as it starts."""
    webhook: Annotated[str, AfterValidator(_reference)] | None = None
    """Reference to an address that gets the event as the body of a POST."""
    timeout_seconds: Annotated[Positive, Field(le=60.0)] = 10.0
    """When a hook that has not ended is given up."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.webhook is None):
            raise ValueError("expected exactly one of command and webhook")
        return self
