"""Share of the quickstart's wall time that its critical path spends outside the bodies of nodes.

The critical path is the chain from the node that ends last back through the input that ended last. Everything else of
the wall time counts: the driver's start, waiting for servers, hand-over between nodes, a node's start in its process,
tracking and versioning that anything waits for, and the wait for Prefect and MLflow at the end.
"""

import json
from datetime import datetime
from typing import Any

from tests.bench.common import QUICKSTART, fresh_home, receipts, report, tutelage


def ended(receipt: dict[str, Any]) -> float:
    """Return when a body ended, in seconds since the epoch."""
    return datetime.fromisoformat(receipt["started"]).timestamp() + receipt["seconds"]


def critical_path(done: dict[str, dict[str, Any]], inputs: dict[str, list[str]]) -> list[str]:
    """Return the chain of node ids, last first; nodes that were skipped hand on what they wait for."""

    def waited_for(node: str) -> set[str]:
        return {m for n in inputs[node] for m in ({n} if n in done else waited_for(n))}

    path = [max(done, key=lambda n: ended(done[n]))]
    while before := waited_for(path[-1]):
        path.append(max(before, key=lambda n: ended(done[n])))
    return path


def main() -> None:
    with fresh_home() as home:
        _, planned = tutelage("plan", str(QUICKSTART), "--json", home=home)
        wall, ran = tutelage("run", str(QUICKSTART), home=home)
        done = {r["node"]: r for r in receipts(home) if r["started"]}
    inputs = {n["id"]: list(n["inputs"].values()) for n in json.loads(planned.stdout)["nodes"]}
    path = critical_path(done, inputs)
    bodies = sum(done[n]["seconds"] for n in path)
    share = (wall - bodies) / wall
    report(
        "overhead",
        share,
        "< 0.05",
        holds=share < 0.05,
        detail={"wall_s": round(wall, 1), "bodies_s": round(bodies, 1), "path": path[::-1], "exit": ran.returncode},
    )


if __name__ == "__main__":
    main()
