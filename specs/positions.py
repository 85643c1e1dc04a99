"""Where things stand in a program file, and mistakes that say so."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from specs.errors import ProgramError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file; line and column count from 1. Line 0 means that the source is not a file (`--set`)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong (or, as a warning, odd): where, and what was found and expected."""

    position: Position
    path: KeyPath
    text: str
    code: Literal["", "unknown_key", "unknown_name"] = ""
    meant: str | None = None
    """The key that was probably meant."""

    def __str__(self) -> str:
        where = path_text(self.path)
        if not self.position.line and self.position.file.endswith(where):
            return f"{self.position}: {self.text}"
        return f"{self.position} {where}: {self.text}" if where else f"{self.position}: {self.text}"


class InvalidProgramError(ProgramError):
    """Every mistake of a program at once, one a line."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(str(m) for m in mistakes))
        self.mistakes = tuple(mistakes)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.mistakes,))


def as_map(value: object) -> dict[str, Any] | None:
    """Return the value where it is a map."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def path_text(path: KeyPath) -> str:
    """Return `stages[0].algorithm.type` for `("stages", 0, "algorithm", "type")`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def position_of(path: KeyPath, positions: Mapping[KeyPath, Position]) -> Position:
    """Return the position of a path, or of the nearest thing around it that is written down."""
    for length in range(len(path), -1, -1):
        found = positions.get(path[:length])
        if found is not None:
            return found
    return Position("program")


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that `word` was probably meant to be."""
    if not isinstance(word, str) or not word:
        return None
    from difflib import get_close_matches

    words = sorted(set(known))
    folded = {_fold(w): w for w in words}
    close = get_close_matches(_fold(word), list(folded), n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def _fold(word: str) -> str:
    return re.sub(r"[\s_-]+", "_", word.lower())


def listed(words: Iterable[str], most: int = 16) -> str:
    """Return `a, b or c`."""
    names = list(words)
    if len(names) > most:
        return ", ".join(names[:most]) + f" (and {len(names) - most} more)"
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1] if names else "none"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return `; did you mean x?`, or nothing where no known word is near."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near is not None else ""
