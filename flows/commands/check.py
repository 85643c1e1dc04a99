"""`tutelage check FILE`: every mistake of a program at once, offline."""

import argparse
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specs.errors import ProgramError

EXAMPLES = {"check": "tutelage check specs/programs/quickstart.yaml --set run.parallel=4"}


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the options of `check`."""
    parser.add_argument("program", nargs="+", help="program file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", dest="settings", help="write over one value"
    )
    parser.add_argument(
        "--contract", metavar="NAME", help="run the contract test of an environment or verifier (it starts its program)"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the findings as JSON")
    output.add_argument(
        "--expanded", action="store_true", help="print the program with everything implicit written out"
    )


def run(args: argparse.Namespace) -> int:
    """Check each file; the exit code is 2 where one has a mistake."""
    if args.contract is not None:
        return _contracts(args)
    with _no_collecting():
        results = [_checked(name, args.settings) for name in args.program]
    if args.json:
        print(json.dumps(results[0] if len(results) == 1 else results, indent=2, ensure_ascii=False))
    for result in [] if args.json else results:
        if args.expanded and result["ok"]:
            from specs.loader import dump_program, load_program

            print(dump_program(load_program(result["file"], args.settings).program), end="")
        else:
            _show(result)
    return 0 if all(r["ok"] for r in results) else ProgramError.exit_code


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Keep the collector still: what importing the specs makes stays, and looking through it takes 15 ms."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _contracts(args: argparse.Namespace) -> int:
    """Run the contract test in each file; nothing heavy is imported without one."""
    from flows.commands.contract import run_contract

    return max(run_contract(f, args.settings, args.contract, as_json=args.json) for f in args.program)


def _checked(name: str, settings: list[str]) -> dict[str, Any]:
    from specs.loader import load_program
    from specs.positions import InvalidProgramError

    try:
        loaded = load_program(name, settings)
    except InvalidProgramError as e:
        return {"file": name, "ok": False, "mistakes": [_finding(m) for m in e.mistakes], "warnings": []}
    except ProgramError as e:
        finding = {"file": name, "line": None, "column": None, "path": "", "text": str(e), "shown": str(e)}
        return {"file": name, "ok": False, "mistakes": [finding], "warnings": []}
    found = {"file": name, "ok": True, "mistakes": [], "warnings": [_finding(w) for w in loaded.warnings]}
    return {**found, "program": loaded.program.program, "references": sorted({r.name for r in loaded.references})}


def _finding(mistake: Any) -> dict[str, Any]:
    from specs.positions import path_text

    at = mistake.position
    place = {"file": at.file, "line": at.line or None, "column": at.column or None}
    return {**place, "path": path_text(mistake.path), "text": mistake.text, "shown": str(mistake)}


def _show(result: dict[str, Any]) -> None:
    for mistake in result["mistakes"]:
        print(mistake["shown"], file=sys.stderr)
    for warning in result["warnings"]:
        print(f"warning: {warning['shown']}", file=sys.stderr)
    if result["ok"]:
        odd = len(result["warnings"])
        print(f"{result['file']}: ok" + (f", {odd} {'warning' if odd == 1 else 'warnings'}" if odd else ""))
    else:
        count = len(result["mistakes"])
        print(f"{result['file']}: {count} {'mistake' if count == 1 else 'mistakes'}", file=sys.stderr)
