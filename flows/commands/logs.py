"""`tutelage logs NODE`: what a node printed, and why it failed."""

import argparse
import sys
import time
from collections import deque
from difflib import get_close_matches
from pathlib import Path

from flows.commands.bounds import at_least
from flows.commands.status import last_record
from flows.state import RunRecord, State, find_home
from specs.errors import UsageError

EXAMPLES = {"logs": "tutelage logs teach -n 20"}
_POLL = 0.3


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the options of `logs`."""
    parser.add_argument("node", help="node of the last run")
    parser.add_argument("-n", "--lines", type=at_least(0), default=50, help="last lines to show (50)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on showing while the run goes on")
    parser.add_argument("--program", help="program name or file; the one that ran last where left out")


def run(args: argparse.Namespace) -> int:
    """Print the log of a node."""
    state = State(find_home())
    record = last_record(state, args.program)
    path = _log(state, record, args.node)
    end = _print_tail(path, args.lines)
    if args.follow:
        _follow(state, record, path, end)
    elif end == 0:
        print(f"{args.node} ({record.nodes[args.node]['status']}) printed nothing", file=sys.stderr)
    failure = state.failure(path.parent.name)
    if failure is not None:
        print(f"{args.node} failed: {failure['text']}", file=sys.stderr)
    return 0


def _log(state: State, record: RunRecord, node: str) -> Path:
    found = record.nodes.get(node)
    if found is None:
        near = get_close_matches(node, record.nodes, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(record.nodes)}"
        raise UsageError(f"{record.program}: no node {node!r} in the last run; {hint}")
    if not found.get("run_key"):
        raise UsageError(f"{record.program}: {node} was not started ({found['status']}), it has no log")
    return state.node(found["run_key"]) / "log"


def _print_tail(path: Path, lines: int) -> int:
    """Print the last lines; return how many bytes of the file were read."""
    if not path.exists():
        return 0
    with path.open("rb") as f:
        for line in deque(f, maxlen=lines):
            sys.stdout.write(line.decode(errors="replace"))
        sys.stdout.flush()
        return f.tell()


def _follow(state: State, record: RunRecord, path: Path, end: int) -> None:
    while True:
        now = state.last(record.program)
        going = now is not None and now.execution == record.execution and now.state == "running"
        if path.exists():
            with path.open("rb") as f:
                f.seek(end)
                sys.stdout.write(f.read().decode(errors="replace"))
                sys.stdout.flush()
                end = f.tell()
        if not going:
            return
        time.sleep(_POLL)
