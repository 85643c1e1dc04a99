"""One thing that a check found, and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "note", "wrong", "fixed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`note`: harmless, or cleared by the next run. `wrong`: somebody has to act."""

    check: str
    level: Level
    where: str
    what: str
    do: str = ""
    fix: Callable[[], bool] | None = field(default=None, compare=False)
    """Mends it and says whether that was still needed. Only for what is nobody's: stale leases, temporary files."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        shown = {"check": self.check, "level": self.level, "where": self.where, "what": self.what, "do": self.do}
        return {**shown, "fixable": self.fix is not None}


def ok(check: str, where: str, what: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(check, "ok", where, what)
