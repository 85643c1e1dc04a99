"""`tutelage doctor`: look at the machine and at what the project keeps, and say what to do about each finding."""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from flows.checkup import holders, kept, machine
from flows.checkup.findings import Finding
from flows.state import State, find_home

EXAMPLES = {"doctor": "tutelage doctor --fix"}
_STYLES = {"ok": "green", "note": "yellow", "wrong": "red", "fixed": "cyan"}


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the options of `doctor`."""
    parser.add_argument("--fix", action="store_true", help="clear stale leases, dead records and temporary files")
    parser.add_argument("--quick", action="store_true", help="compare sizes of outputs, not their contents")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print what was found; return 2 where something is wrong, else 0."""
    found = list(findings(find_home(), contents=not args.quick))
    if args.fix:
        found = [_fixed(f) for f in found]
    if args.json:
        print(json.dumps({"ok": _code(found) == 0, "findings": [f.to_dict() for f in found]}))
    else:
        _show(found)
    return _code(found)


def findings(home: Path, *, contents: bool = True) -> Iterator[Finding]:
    """Yield everything that the checks found; nothing is changed."""
    yield from machine.versions()
    yield from machine.git_identity(home)
    yield from machine.disk(home)
    yield from machine.ports(home)
    yield from machine.named_services()
    yield from holders.recorded_services(home)
    yield from holders.leases(home)
    state = State(home)
    yield from kept.nodes(state, contents=contents)
    yield from kept.left_over(home)
    yield from kept.records(state)
    yield from kept.registries(home)
    yield from kept.published_pools(home)
    yield from kept.databases(home)
    yield from kept.data_versions(home)
    yield from kept.not_sent(home)


def _fixed(finding: Finding) -> Finding:
    if finding.fix is None:
        return finding
    if finding.fix():
        return replace(finding, level="fixed", do="cleared just now", fix=None)
    return replace(finding, level="note", do="not cleared: somebody uses it by now", fix=None)


def _code(found: Iterable[Finding]) -> int:
    return 2 if any(f.level == "wrong" for f in found) else 0


def _show(found: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from flows.render import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "state", "where", "what was found", "what to do"):
        table.add_column(column, overflow="fold", no_wrap=column in ("check", "state"))
    for f in found:
        table.add_row(f.check, Text(f.level, style=_STYLES[f.level]), Text(f.where), Text(f.what), Text(f.do))
    out = console()
    out.print(table)
    counts = {level: sum(f.level == level for f in found) for level in ("wrong", "note", "fixed")}
    said = ", ".join(f"{n} {level}" for level, n in counts.items() if n) or "everything is well"
    more = "; `tutelage doctor --fix` clears what is safe to clear" if any(f.fix for f in found) else ""
    out.print(Text(f"{said}{more}"))
