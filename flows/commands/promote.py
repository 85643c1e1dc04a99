"""`tutelage promote` and `tutelage rollback`: a person changes the champion."""

import argparse
import json
from pathlib import Path

from flows import registry
from flows.state import State, find_home
from specs.errors import StateError, UsageError

EXAMPLES = {
    "promote": 'tutelage promote quickstart v2 --reason "looked at the trajectories"',
    "rollback": "tutelage rollback quickstart",
}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("program", metavar="PROGRAM", help="name of the program")
    if name == "promote":
        parser.add_argument("what", metavar="VERSION|STAGE", help="v3, challenger, or a stage of the last run")
    parser.add_argument("--reason", metavar="TEXT", required=name == "promote", default="", help="why; it is stored")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Move the aliases and say where they are."""
    home = find_home()
    if args.command == "rollback":
        promotion = registry.rollback(home, args.program, args.reason)
    else:
        promotion = registry.promote(home, args.program, _candidate(State(home), args.program, args.what, args.reason))
    found = registry.load(home, args.program)
    version = found.get(promotion.version)
    if args.json:
        print(
            json.dumps(
                {
                    "program": args.program,
                    "result": promotion.result,
                    "version": promotion.version,
                    "digest": promotion.digest,
                    "stage": version.stage if version is not None else None,
                    "aliases": found.aliases,
                }
            )
        )
        return 0
    said = {"promoted": "is the champion", "already_promoted": "is the champion already"}
    stage = f" ({version.stage})" if version is not None else ""
    print(f"{args.program} v{promotion.version}{stage} {said.get(promotion.result, 'is the champion again')}")
    if (before := found.aliases.get("previous")) is not None and promotion.result != "already_promoted":
        print(f"v{before} is the previous one; `tutelage rollback {args.program}` goes back to it")
    return 0


def _candidate(state: State, program: str, what: str, reason: str) -> registry.Candidate:
    known = registry.load(state.home, program)
    number = what.removeprefix("v")
    version = known.get(int(number)) if number.isdigit() else known.alias(what)
    if version is not None:
        return registry.Candidate(registry.checked_folder(state.home, version), version.stage, reason=reason)
    record = state.last(program)
    plan = state.plan(record.plan) if record is not None else None
    policies = dict(plan["policies"]) if plan is not None else {}
    if record is None or what not in policies:
        have = [*known.aliases, *(f"v{v.version}" for v in known.versions), *policies]
        raise UsageError(
            f"{program}: found neither a version nor a stage called {what!r}; "
            f"there is: {', '.join(have) or 'nothing (run the program first)'}"
        )
    return registry.Candidate(
        _stage_policy(state, record.nodes, policies[what], what), what, None, record.execution, reason
    )


def _stage_policy(state: State, nodes: dict[str, dict[str, str]], node: str, stage: str) -> Path:
    key = (nodes.get(node) or {}).get("run_key")
    out = state.out(key) if key else None
    if out is None or not (out / "policy").is_dir():
        raise StateError(
            f"stage {stage}: node {node} has left no policy in the last run; run the program to its end first"
        )
    return out / "policy"
