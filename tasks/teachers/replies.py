"""What comes of asking a black-box teacher, and what every such teacher is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tasks.teachers.asks import Ask


@dataclass(slots=True)
class Reply:
    """What came of a question: a text, or the reason why there is none."""

    text: str | None
    failure: str | None = None
    """Why there is no text: a word, then details behind a colon."""
    calls: list[str] = field(default_factory=list[str])
    """Keys of the ledger's calls."""
    usd: float = 0.0
    """What it cost, whenever that was paid."""
    requests: int = 0
    """Requests sent now; 0 where the ledger knew the answer."""
    tokens: int = 0
    """Tokens read and written for it."""


class Teacher(Protocol):
    """A black-box teacher."""

    @property
    def revision(self) -> str:
        """Return who answers: kind, model and revision."""
        ...

    def ask(self, asks: Sequence[Ask], prompt: str, *, dispensable: bool = False) -> list[Reply]:
        """Return one reply per question, in order; `prompt` is the instruction's text.

        A question that fails is a reply with its reason. TeacherError where the teacher as a whole cannot be used (as
        `dispensable` that is the reason of every question left open: `teacher_failed`), BudgetError where a cap is
        reached, Interrupted where the node must stop; what was answered until then stays in the ledger.
        """
        ...
