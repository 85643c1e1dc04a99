"""`python -m flows.tethered COMMAND…`: the command line, told to save and stop as soon as its stdin closes.

So a process that was started for another one never outlives it, however that one ends.
"""

import os
import sys
import threading

from flows.cli import main
from tasks.processes import ask_to_end, this_process, until_closed


def watch(stdin: int) -> None:
    """Send SIGTERM to this process when the other side of `stdin` is gone."""
    until_closed(stdin)
    ask_to_end(this_process())


if __name__ == "__main__":
    threading.Thread(target=watch, args=(os.dup(0),), daemon=True).start()
    sys.exit(main())
