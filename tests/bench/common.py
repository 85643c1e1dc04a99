"""What every measurement shares: running the command line in a home of its own, and the last line it prints."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "specs" / "programs" / "quickstart.yaml"


def report(name: str, figure: float, bound: str, *, holds: bool, detail: dict[str, Any]) -> None:
    """Print the one JSON line that `tests.bench.all` reads."""
    print(json.dumps({"name": name, "figure": round(figure, 4), "bound": bound, "holds": holds, "detail": detail}))


@contextmanager
def fresh_home() -> Iterator[Path]:
    """Yield an empty home for runs; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tutelage-bench-") as folder:
        yield Path(folder)


def tutelage(*arguments: str, home: Path | None = None) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run one command; return its wall seconds and what it printed."""
    environment = dict(os.environ, **({"TUTELAGE_HOME": str(home)} if home else {}))
    environment.pop("PREFECT_API_URL", None)
    environment.pop("MLFLOW_TRACKING_URI", None)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return time.monotonic() - start, done


def measured(home: Path) -> dict[str, dict[str, Any]]:
    """Return the metrics of every finished evaluation of a home, by node id (`eval.<policy>.<set>`)."""
    found: dict[str, dict[str, Any]] = {}
    for path in home.glob("nodes/*/receipt.json"):
        receipt = json.loads(path.read_text(encoding="utf-8"))
        metrics = path.parent / "out" / "metrics.json"
        if receipt["kind"] == "evaluate" and metrics.exists():
            found[receipt["node"]] = json.loads(metrics.read_text(encoding="utf-8"))["metrics"]
    return found


def receipts(home: Path) -> list[dict[str, Any]]:
    """Return every receipt of a home."""
    return [json.loads(p.read_text(encoding="utf-8")) for p in sorted(home.glob("nodes/*/receipt.json"))]
