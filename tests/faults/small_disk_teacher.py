"""Ask a teacher while its ledger lies on a disk of two megabytes that somebody else fills and empties again.

`python -m tests.faults.small_disk_teacher DISK FREE_KB URL` inside a mount namespace of its own (`unshare -Urm`): asks
COUNT questions with FREE_KB free, empties the disk, asks again, and prints one JSON line.
"""

import json
import sys
from pathlib import Path
from typing import Any

from specs.errors import StateError
from tests.faults.small_disk import SIZE, mount
from tests.tasks.teachers.asked import asks, client, teacher

COUNT = 24
IN_FLIGHT = 4


def main(disk: Path, free_kb: int, url: str) -> int:
    if (why := mount(disk)) is not None:
        print(json.dumps({"skip": why}))
        return 0
    (disk / "filler").write_bytes(b"x" * (SIZE - free_kb * 1024))
    spec = teacher(url, price={"input": 1.0, "output": 1.0}, limits={"in_flight": IN_FLIGHT})
    told: dict[str, Any] = {}
    try:
        client(disk, spec).ask(asks(COUNT), "score it")
    except StateError as e:
        told["first"] = str(e)
    ended = [json.loads(x) for x in (disk / "calls.jsonl").read_bytes().splitlines(keepends=True) if x.endswith(b"\n")]
    told["kept"] = sum(r.get("outcome") == "ok" for r in ended)
    (disk / "filler").unlink()
    replies = client(disk, spec).ask(asks(COUNT), "score it")
    told |= {"answered": sum(r.text is not None for r in replies), "asked": sum(r.requests for r in replies)}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
