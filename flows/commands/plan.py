"""`tutelage plan`: what would run, what is reused and why, what it takes, and what the gates can see."""

import argparse
import json
import sys
from pathlib import Path

from flows.durable import write_durable
from flows.looks import known
from flows.plan import diff, save_bytes, statuses
from flows.power import gate_powers
from flows.prepare import last_plan, other_plan, prepare
from flows.spending import cap_warnings
from flows.state import State, find_home

EXAMPLES = {"plan": "tutelage plan specs/programs/quickstart.yaml --diff last"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of `plan`."""
    parser.add_argument("file", help="program file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a field, repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--diff", metavar="WHAT", help="compare with `last`, `champion`, a saved plan or a program file"
    )
    parser.add_argument("--refresh", action="store_true", help="look up moving names (aliases) anew")
    parser.add_argument(
        "--rounds-only",
        action="store_true",
        help="rounds of the flywheel alone, from the champion; no stage of the main part",
    )
    parser.add_argument("--save", metavar="FILE", help="write the plan, for `run --plan FILE`")


def run(args: argparse.Namespace) -> int:
    """Plan a program; nothing is run and no state is changed."""
    state = State(find_home())
    loaded, plan = prepare(Path(args.file), args.set, state, refresh=args.refresh, rounds_only=args.rounds_only)
    found = statuses(plan, state, last_plan(state, plan.program))
    powers = gate_powers(plan, known(plan, state, found))
    against = None if args.diff is None else diff(other_plan(args.diff, plan, state), plan)
    if args.save is not None:
        write_durable(Path(args.save), save_bytes(plan))
    spend = cap_warnings(plan, [n for n in plan if found[n.id].status in ("run", "maybe", "resume")])
    for text in (*(str(w) for w in loaded.warnings), *dict.fromkeys(state.damage), *spend):
        print(text, file=sys.stderr)
    from flows.render import console, diff_view, plan_json, plan_view

    if args.json:
        print(json.dumps(plan_json(plan, found, powers, against), allow_nan=False))
        return 0
    out = console()
    out.print(plan_view(plan, found, powers))
    if against is not None:
        out.print(diff_view(against, str(args.diff)))
    return 0
