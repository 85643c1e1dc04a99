"""`tutelage why`: why a node would run or is reused, and what its key consists of."""

import argparse
import json
from pathlib import Path
from typing import Any

from flows.nodes import Node, Plan, digest
from flows.plan import Status, changes, statuses
from flows.prepare import last_plan, prepare
from flows.state import State, find_home

EXAMPLES = {"why": "tutelage why specs/programs/quickstart.yaml rl"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of `why`."""
    parser.add_argument("file", help="program file")
    parser.add_argument("node", help="node id, as `tutelage plan` shows it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a field, repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Explain one node; nothing is run and no state is changed."""
    state = State(find_home())
    _, plan = prepare(Path(args.file), args.set, state)
    node = plan.node(args.node)
    last = last_plan(state, plan.program)
    found = statuses(plan, state, last)
    told = explain(plan, node, found, last)
    if args.json:
        print(json.dumps(told, allow_nan=False))
        return 0
    print("\n".join(sentences(told)))
    return 0


def explain(plan: Plan, node: Node, found: dict[str, Status], last: Plan | None) -> dict[str, Any]:
    """Return why a node has its status: the parts of its key, what changed since the last run, and where it began."""
    before = next((n for n in last or () if n.id == node.id), None)
    changed = [] if before is None else changes(before, node)
    keys = {n.id: n.plan_key for n in plan}
    status = found[node.id]
    causes = [n for n in plan.upstream(node.id)[:-1] if found[n].changes]
    return {
        "schema": 1,
        "node": node.id,
        "kind": node.kind,
        "status": status.status,
        "reason": status.reason,
        "key": {
            "plan_key": node.plan_key,
            "run_key": status.run_key,
            "kind": node.kind,
            "version": node.version,
            "seed": node.seed,
            "params": digest(node.key_params),
            "inputs": {name: {"node": source, "plan_key": keys[source]} for name, source in node.inputs.items()},
        },
        "ran": last is not None,
        "before": None if before is None else before.plan_key,
        "changed": [{"field": c.field, "before": c.before, "after": c.after, "text": str(c)} for c in changed],
        "began_with": [{"node": n, "status": found[n].status, "reason": found[n].reason} for n in causes],
        "inputs": {
            n: {"status": found[n].status, "reason": found[n].reason} for n in dict.fromkeys(node.inputs.values())
        },
        "runs_if": node.when,
        "readers": plan.downstream(node.id)[1:],
    }


def _never(told: dict[str, Any]) -> str:
    if told["status"] == "reused":
        return "made by an earlier run"
    return "the last run had no such node" if told["ran"] else "no earlier run of the program is known here"


def sentences(told: dict[str, Any]) -> list[str]:
    """Return the explanation as lines."""
    key = told["key"]
    lines = [f"{told['node']} ({told['kind']}): {told['status']}{': ' + told['reason'] if told['reason'] else ''}"]
    if told["began_with"]:
        lines += [f"  because {c['node']}: {c['reason']}" for c in told["began_with"]]
    if told["changed"]:
        lines += ["changed since the last run:", *(f"  {c['text']}" for c in told["changed"])]
    elif told["before"] is not None and told["before"] != key["plan_key"]:
        lines.append("changed since the last run: only its inputs")
    elif told["before"] is not None:
        lines.append("nothing changed since the last run")
    else:
        lines.append(_never(told))
    lines += [
        f"key {key['plan_key'][:12]}" + (f", run key {key['run_key'][:12]}" if key["run_key"] else ""),
        f"  kind {key['kind']} version {key['version']}, seed {key['seed']}, params {key['params'][:12]}",
    ]
    for name, source in key["inputs"].items():
        now = told["inputs"][source["node"]]
        words = now["status"].replace("_", " ")
        lines.append(f"  input {name}: {source['node']} {source['plan_key'][:12]} ({words})")
    lines.append(f"read by: {', '.join(told['readers']) or 'nothing'}")
    return lines
