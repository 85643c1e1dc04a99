"""The one place where any exception becomes data, or an error of ours: what foreign code raises is bounded and named."""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from specs.errors import Interrupted, ServiceError, TutelageError

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
        return Failure(where, type(e).__name__, _writable(str(e)[:2000]), place)


def _writable(text: str) -> str:
    """Return a text that can be written to a file: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def reason_of(error: Exception) -> str:
    """Return the class and the first line of an exception's text, cut."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:300]}" if first else type(error).__name__


@contextlib.contextmanager
def foreign(where: str, reason: Callable[[Exception], str] = reason_of) -> Iterator[None]:
    """Turn whatever a service or its client raises into ServiceError: `where`, then its `reason` in a sentence.

    Our own errors and a lack of memory pass through; the first of them that a service may meet is `Interrupted`.
    """
    try:
        yield
    except (TutelageError, MemoryError):
        raise
    except Exception as e:
        raise ServiceError(f"{where}: {reason(e)}") from e
