"""`tutelage status`: the nodes of the last run, from what is on disk; nothing has to be running."""

import argparse
import json
from pathlib import Path

from flows.prepare import last_plan
from flows.state import RunRecord, State, find_home
from flows.summary import summary, view
from specs.errors import StateError

EXAMPLES = {"status": "tutelage status"}


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the options of `status`."""
    parser.add_argument("program", nargs="?", help="program name or file; the one that ran last where left out")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the state of the last run; return 0 whatever it is."""
    state = State(find_home())
    record = last_record(state, args.program)
    data = summary(state, record, last_plan(state, record.program), f"tutelage resume {record.file}")
    data["notes"] = list(dict.fromkeys(state.damage))
    if args.json:
        print(json.dumps(data, allow_nan=False))
        return 0
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(view(data, data["notes"]))
    return 0


def last_record(state: State, wanted: str | None) -> RunRecord:
    """Return the record of a program's last run, by name or file. StateError where there is none."""
    names = state.programs()
    for name in names:
        record = state.last(name)
        if record is not None and (wanted in (None, name) or Path(str(wanted)).absolute() == Path(record.file)):
            return record
    known = f"; programs that ran here: {', '.join(names)}" if names else "; start one with `tutelage run FILE`"
    raise StateError(f"{state.home}: no run of {wanted or 'any program'} is recorded here{known}")
