"""The one place where any exception becomes data: what foreign code raises is bounded, named and handed on."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from specs.errors import Interrupted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that was caught at a boundary."""

    where: str
    kind: str
    """Class name of the exception."""
    message: str
    place: str
    """`file:line` of the innermost frame."""

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.message} ({self.place})"


def boundary(where: str, work: Callable[[], T]) -> T | Failure:
    """Return what `work` returns, or the Failure it raised. Interruptions and lack of memory pass through."""
    try:
        return work()
    except (Interrupted, MemoryError):
        raise
    except Exception as e:  # noqa: BLE001 - this is the boundary
        frames = traceback.extract_tb(e.__traceback__)
        place = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else "unknown place"
        return Failure(where, type(e).__name__, str(e)[:2000], place)
