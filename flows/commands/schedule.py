"""`tutelage schedule`: compare the schedules that a program declares with Prefect's, and make them the same."""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.state import State, find_home
from specs.errors import ProgramError

if TYPE_CHECKING:
    from flows.deployments import Change, Deployed, Wanted

EXAMPLES = {"schedule": "tutelage schedule specs/programs/quickstart.yaml --apply"}
_SIGNS = {"create": "+", "update": "~", "delete": "-", "keep": " "}
_STYLES = {"create": "green", "update": "yellow", "delete": "red", "keep": "dim"}


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments."""
    parser.add_argument("program", metavar="PROGRAM", help="program file; with --remove its name will do")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing (the default)")
    what.add_argument("--apply", action="store_true", help="create, change and delete schedules in Prefect")
    what.add_argument("--remove", action="store_true", help="delete every schedule of the program in Prefect")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Show the difference, and make it none where that is asked."""
    from flows.deployments import apply, client, compare, deployed, foreign, moved, needed_server, paused, polled
    from flows.worker import advice

    state = State(find_home())
    wanted = _wanted(args.program, state, remove=args.remove)
    url = needed_server(state.home)
    with client(state.home, url) as found:
        there = deployed(found, wanted.program)
        foreign(wanted, there)
        changes, self_moved = compare(wanted.schedules, there), moved(wanted, there) if wanted.schedules else {}
        ready, stopped = polled(found, state.home), paused(found, state.home)
        done = (args.apply or args.remove) and (bool(self_moved) or any(c.do != "keep" for c in changes) or args.remove)
        if done:
            apply(found, wanted, there)
    if wanted.schedules and not ready:
        print(f"no worker takes this project's runs from {url}: {advice(state.home, url)}", file=sys.stderr)
    if wanted.schedules and stopped:
        print(
            f"nothing is run: the work pool or the queue is paused in Prefect; `{'`, `'.join(stopped)}`",
            file=sys.stderr,
        )
    if args.json:
        print(json.dumps(_json(wanted, changes, self_moved, applied=bool(done), worker=ready)))
        return 0
    _print(wanted, there, changes, self_moved, applied=bool(args.apply or args.remove))
    return 0


def _wanted(program: str, state: State, *, remove: bool) -> "Wanted":
    from flows.deployments import Wanted
    from specs.loader import load_program

    if remove and not Path(program).is_file() and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", program):
        return Wanted(program, Path(program).absolute(), state.home, {})
    loaded = load_program(program)
    for warning in loaded.warnings:
        print(str(warning), file=sys.stderr)
    name = loaded.program.program
    if not loaded.program.schedule and not remove:
        print(
            f"{name} declares no schedule; write one under `schedule:` (what Prefect has of it is removed)",
            file=sys.stderr,
        )
    if os.sep in name:
        raise ProgramError(f"{program}: {name!r} cannot name a deployment")
    schedules = {} if remove else loaded.program.schedule
    return Wanted(name, Path(program).absolute(), state.home, schedules, loaded.program.notify)


def _json(
    wanted: "Wanted", changes: "list[Change]", self_moved: dict[str, Any], *, applied: bool, worker: bool
) -> dict[str, Any]:
    def pairs(found: dict[str, Any]) -> dict[str, Any]:
        return {k: {"from": old, "to": new} for k, (old, new) in found.items()}

    return {
        "program": wanted.program,
        "applied": applied,
        "worker": worker,
        "deployment": pairs(self_moved),
        "schedules": [{"schedule": c.slug, "do": c.do, "fields": pairs(c.fields)} for c in changes],
    }


def _print(
    wanted: "Wanted", there: "Deployed", changes: "list[Change]", self_moved: dict[str, Any], *, applied: bool
) -> None:
    from rich.table import Table
    from rich.text import Text

    from flows.render import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "schedule", "field", "in Prefect", "declared"):
        table.add_column(name, overflow="fold")
    for name, (old, new) in self_moved.items():
        table.add_row("~", Text("(deployment)", style="yellow"), name, _word(old), _word(new))
    for change in changes:
        first = True
        for name, (old, new) in change.fields.items() or {"": (None, None)}.items():
            label = Text(change.slug, style=_STYLES[change.do]) if first else Text("")
            table.add_row(_SIGNS[change.do] if first else "", label, name, _word(old), _word(new))
            first = False
    out = console()
    if table.row_count:
        out.print(table)
    out.print(_last_line(wanted, there, changes, self_moved, applied=applied))


def _word(value: Any) -> str:
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _last_line(
    wanted: "Wanted", there: "Deployed", changes: "list[Change]", self_moved: dict[str, Any], *, applied: bool
) -> str:
    todo = [c for c in changes if c.do != "keep"]
    if not todo and not self_moved:
        return f"{wanted.program}: nothing to change, {len(changes)} schedules are as declared"
    counts = [
        f"{sum(c.do == do for c in todo)} to {do}"
        for do in ("create", "update", "delete")
        if any(c.do == do for c in todo)
    ]
    text = ", ".join(counts) or "the deployment is to be updated"
    if not applied:
        return f"{wanted.program}: {text}; nothing was changed, `--apply` does it"
    return f"{wanted.program}: done ({text})"
