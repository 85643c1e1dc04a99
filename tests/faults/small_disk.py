"""Run the campaign on a disk of two megabytes that somebody else fills and empties again.

`python -m tests.faults.small_disk HOME FREE_KB OUT` inside a mount namespace of its own (`unshare -Urm`): mounts a
small disk at HOME's parent, leaves FREE_KB free there, runs, empties it, runs again, copies what is left to OUT, and
prints one JSON line.
"""

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.faults.running import calls, finish, scan, start

SIZE = 2 << 20


def mount(disk: Path) -> str | None:
    """Mount a small disk; return why it cannot be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, f"size={SIZE}".encode()) != 0:
        return f"a small disk ({os.strerror(ctypes.get_errno())})"
    return None


def main(home: Path, free_kb: int, out: Path) -> int:
    disk = home.parent
    if (why := mount(disk)) is not None:
        print(json.dumps({"skip": why}))
        return 0
    options: dict[str, Any] = json.loads(os.environ.get("FAULT_OPTIONS", "{}"))
    settings: dict[str, Any] = {k: v for k, v in os.environ.items() if k.startswith("FAULT_PAD_")}
    settings |= {"FAULT_PAID": str(out.with_suffix(".paid")), "FAULT_STEPS": str(out.with_suffix(".steps"))}
    settings["options"] = options
    (disk / "filler").write_bytes(b"x" * (SIZE - free_kb * 1024))
    first = finish(start(home, **settings), 120)
    scan(home)
    before = {"paid": calls(out).total(), "kept": _kept(home)}
    (disk / "filler").unlink()
    second = finish(start(home, **settings), 120)
    scan(home)
    shutil.copytree(home, out)
    print(json.dumps({"first": first, "second": second, **before}))
    return 0


def _kept(home: Path) -> int:
    """Return how many paid calls lie whole in ledgers or in sealed outputs."""
    paths = [p for name in ("calls", "trajectories") for p in home.glob(f"nodes/*/ckpt/{name}.jsonl")]
    ledgers = [p.read_text().splitlines(keepends=True) for p in paths]
    sealed = [p.read_text().splitlines(keepends=True) for p in home.glob("nodes/*/out/r*.jsonl")]
    sealed = [lines for lines in sealed if lines and '"key"' in lines[0]]
    return sum(line.endswith("\n") for lines in (*ledgers, *sealed) for line in lines)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
