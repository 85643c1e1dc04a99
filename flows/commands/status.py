"""`tutelage status`: the nodes of the last run, from what is on disk; nothing has to be running."""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from flows import worker
from flows.commands.bounds import at_least
from flows.prepare import last_plan
from flows.state import RunRecord, State, exit_code, find_home
from flows.summary import ENDS, summary, view
from specs.errors import UsageError

EXAMPLES = {"status": "tutelage status"}


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the options of `status`."""
    parser.add_argument("program", nargs="?", help="program name or file; the one that ran last where left out")
    parser.add_argument(
        "--runs", type=at_least(1), nargs="?", const=20, metavar="N", help="list the last N runs (20) instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the state of the last run; return 0 whatever it is."""
    state = State(find_home())
    record = last_record(state, args.program)
    if args.runs is not None:
        return _runs(state, record.program, args.runs, as_json=args.json)
    data = summary(state, record, last_plan(state, record.program), f"tutelage resume {record.file}")
    data["notes"] = list(dict.fromkeys(state.damage))
    data["worker"] = worker.uses(state.home)
    if args.json:
        print(json.dumps(data, allow_nan=False))
        return 0
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(view(data, data["notes"]))
    if (used := data["worker"]) is not None:
        console.print(f"worker: takes runs from {used['prefect']}, their metrics go to {used['mlflow']}")
    return 0


def _runs(state: State, program: str, most: int, *, as_json: bool) -> int:
    """Print the last executions of a program, oldest first."""
    rows = [_row(state, r) for r in state.executions(program)[-most:]]
    if as_json:
        print(json.dumps(rows, allow_nan=False))
        return 0
    from rich.table import Table

    from flows.render import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("execution", "by", "began", "ended", "state", "nodes"):
        table.add_column(name, overflow="fold")
    for row in rows:
        nodes = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in row["nodes"].items())
        by = row["schedule"] or "a person"
        table.add_row(row["execution"], by, row["started"][:19], (row["ended"] or "")[:19], row["state"], nodes)
    console().print(table)
    return 0


def _row(state: State, record: RunRecord) -> dict[str, Any]:
    code = exit_code(record)
    crashed = record.arguments.get("crashed") or record.state == "crashed"
    counts = Counter(str(n.get("status")) for n in record.nodes.values())
    settled = code == 0 and not set(counts) - {"reused", "skipped"}
    words = ENDS.get(code, "failed") if code is not None else record.state
    return {
        "execution": record.execution,
        "schedule": record.arguments.get("schedule"),
        "started": record.started,
        "ended": record.ended,
        "exit_code": code,
        "state": "crashed" if crashed else "nothing to do" if settled else words,
        "nodes": dict(counts),
    }


def last_record(state: State, wanted: str | None) -> RunRecord:
    """Return the record of a program's last run, by name or file. StateError where there is none."""
    names = state.programs()
    for name in names:
        record = state.last(name)
        if record is not None and (wanted in (None, name) or Path(str(wanted)).absolute() == Path(record.file)):
            return record
    known = f"; programs that ran here: {', '.join(names)}" if names else "; start one with `tutelage run FILE`"
    raise UsageError(f"{state.home}: no run of {wanted or 'any program'} is recorded here{known}")
