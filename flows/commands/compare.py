"""`tutelage compare`: two runs, or two evaluations, paired by problem."""

import argparse
import json
from pathlib import Path
from typing import Any

from flows import lookup
from flows.state import State, find_home
from specs.errors import UsageError
from tasks.judging.compare import compare, text
from tasks.judging.results import read_evaluation

EXAMPLES = {"compare": "tutelage compare order-desk/sft order-desk/rl --set hidden"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    what = "a program, the id of an execution, either with /STAGE, or the folder of an evaluation"
    parser.add_argument("a", metavar="RUN_A", help=what)
    parser.add_argument("b", metavar="RUN_B", help="as RUN_A; effects are RUN_B minus RUN_A")
    parser.add_argument("--set", dest="sets", action="append", metavar="NAME", help="only this set, repeatable")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the intervals (0.95)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _pairs(first: dict[str, Path], second: dict[str, Path], wanted: list[str] | None) -> list[tuple[str, Path, Path]]:
    if "" in first or "" in second:  # a folder stands for the one set of the other side, or that of its own
        one = {k: v for k, v in (first if "" not in first else second).items() if k}
        names = wanted or list(one) or [""]
        return [(n, first.get(n) or first.get("") or Path(), second.get(n) or second.get("") or Path()) for n in names]
    shared = [s for s in first if s in second and (wanted is None or s in wanted)]
    return [(s, first[s], second[s]) for s in shared]


def run(args: argparse.Namespace) -> int:
    """Print the comparisons; 0 however they come out."""
    if not 0.5 < args.confidence < 1.0:
        raise UsageError(f"--confidence {args.confidence}: expected a number between 0.5 and 1")
    state = State(find_home())
    first, second = lookup.evaluations(state, args.a), lookup.evaluations(state, args.b)
    found: list[dict[str, Any]] = []
    for name, a, b in _pairs(first, second, args.sets):
        old, new = read_evaluation(a), read_evaluation(b)
        if name and name not in (old.set, new.set):
            continue
        found.append({"run_a": args.a, "run_b": args.b, **compare(old, new, args.confidence)})
    if not found:
        raise UsageError(
            f"{args.a} and {args.b} share no evaluated set{f' among {args.sets}' if args.sets else ''}; "
            f"the first has {', '.join(first) or 'none'}, the second {', '.join(second) or 'none'}"
        )
    if args.json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        print(f"a: {args.a}\nb: {args.b}\n")
        print("\n".join(text(c) for c in found), end="")
    return 0
