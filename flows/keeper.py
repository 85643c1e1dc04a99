"""The process around a server: ends it as soon as nobody owns it, so that a killed driver leaves no server behind.

`python -m flows.keeper RECORD MODULE ARGUMENT…` runs `python -m MODULE ARGUMENT…` in this very process; a thread
reads the owners from RECORD (written by `flows.services`) and ends this session once the last of them is gone.
"""

import json
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from flows.leases import process_from
from tasks.processes import end_own_session

_EVERY = 1.0  # seconds between two looks at the owners
_GRACE = 5.0  # seconds that a server gets to end by itself


def owned(record: Path) -> bool | None:
    """Return whether a record names an owner that lives, or is kept by `up`; None where it cannot be read."""
    try:
        data = json.loads(record.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return None
    owners = [process_from(o) for o in data.get("owners", [])]
    return bool(data.get("kept")) or any(o is not None and o.alive for o in owners)


def end_session() -> None:
    """Ask every process of this session to end, then make them."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL) if threading.current_thread() is threading.main_thread() else None
    end_own_session(grace=_GRACE)


def _watch(record: Path) -> None:
    lost = 0
    while True:
        time.sleep(_EVERY)
        lost = lost + 1 if owned(record) is False else 0
        if lost >= 2:  # twice in a row, so that a change of hands is never mistaken for the end
            end_session()


def main() -> None:
    """Watch the record and be the server."""
    record, module, *arguments = sys.argv[1:]
    threading.Thread(target=_watch, args=(Path(record),), daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
