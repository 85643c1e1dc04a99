"""Share of the quickstart's wall time in which no node's body runs.

Counted: the driver's start, waiting for servers, hand-over between nodes, tracking and versioning that every node waits
for, and the drain at the end. Not counted: moments in which at least one body runs, so what is done beside the bodies,
on the other core, costs nothing here; it shows in the bodies' own seconds.
"""

from datetime import datetime
from typing import Any

from tests.bench.common import QUICKSTART, fresh_home, receipts, report, tutelage


def span(receipt: dict[str, Any]) -> tuple[float, float]:
    """Return when a body began and ended, in seconds since the epoch."""
    began = datetime.fromisoformat(receipt["started"]).timestamp()
    return began, began + receipt["seconds"]


def main() -> None:
    with fresh_home() as home:
        wall, done = tutelage("run", str(QUICKSTART), home=home)
        rows = receipts(home)
    spans = sorted(span(r) for r in rows)
    busy, end = 0.0, float("-inf")
    for start, stop in spans:  # union of intervals in which at least one body ran
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    share = (wall - busy) / wall
    report(
        "overhead",
        share,
        "< 0.05",
        holds=share < 0.05,
        detail={"wall_s": round(wall, 1), "bodies_s": round(busy, 1), "exit": done.returncode},
    )


if __name__ == "__main__":
    main()
