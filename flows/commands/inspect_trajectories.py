"""`tutelage inspect`: show trajectories as conversations, or list them."""

import argparse
import json
from pathlib import Path
from typing import Any

from flows import lookup
from flows.commands.bounds import at_least
from flows.state import RunRecord, State, find_home
from specs.errors import ProgramError, UsageError
from specs.records import Trajectory, to_dict

EXAMPLES = {"inspect": "tutelage inspect quickstart:eval.rl.hidden --failed"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("where", metavar="FOLDER|RUN:NODE", help="a folder with shards, or a node of a program's run")
    parser.add_argument("id", nargs="?", metavar="ID", help="a trajectory, or the beginning of its id; else a list")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--failed", action="store_true", help="those without success")
    which.add_argument("--best", action="store_true", help="those with the highest reward")
    which.add_argument("--worst", action="store_true", help="those with the lowest reward")
    parser.add_argument("--part", help="one of the folder's parts, for example greedy")
    parser.add_argument("--limit", type=at_least(1), help="how many to show: 1 conversation or 20 lines where left out")
    parser.add_argument("--policy", help="a policy whose tokenizer reads the prompt; the node's own where left out")
    parser.add_argument("--json", action="store_true", help="print records as JSON")


def run(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    folder, node, record = _place(args.where)
    parts = _parts(folder, args.part)
    asked = args.id is not None or args.failed or args.best or args.worst
    rows = _chosen(args, _rows(parts))
    limit = args.limit if args.limit is not None else 1 if asked else 20
    shown = rows[:limit]
    if not asked:
        _list(args, rows, shown)
        return 0
    if not shown:
        raise UsageError(f"{args.where}: no trajectory fits what was asked for; leave the choice out to list them")
    wanted = {(r["part"], r["id"]): None for r in shown}
    found = _read(parts, wanted)
    if args.json:
        print(json.dumps([{"part": part, **to_dict(t)} for (part, _), t in found.items()], ensure_ascii=False))
        return 0
    from flows.conversation import conversation

    tokenizer = lookup.tokenizer_of(State(find_home()), folder, node, record, args.policy)
    print("\n\n".join(conversation(t, tokenizer) for t in found.values()))
    if len(rows) > len(shown):
        print(f"\n{len(rows) - len(shown)} more fit; --limit shows them")
    return 0


def _place(where: str) -> tuple[Path, str | None, RunRecord | None]:
    """Return the folder to look in, and the node and run that it belongs to where these are named."""
    if Path(where).is_dir():
        return Path(where), None, None
    name, colon, node = where.partition(":")
    if not colon:
        raise ProgramError(f"inspect: found {where!r}, which is no folder; expected a folder or RUN:NODE")
    state = State(find_home())
    record = lookup.record_of(state, name)
    return lookup.node_output(state, record, node), node, record


def _parts(folder: Path, part: str | None) -> dict[str, Path]:
    found = {
        p.parent.relative_to(folder).as_posix(): p.parent
        for p in sorted(folder.rglob("summary.parquet"))
        if p.is_file()
    }
    if not found:
        raise UsageError(f"{folder}: holds no trajectories; expected the output of a node that rolls out")
    if part is None:
        return found
    if part not in found:
        raise UsageError(f"{folder}: has no part {part!r}; it has {', '.join(found)}")
    return {part: found[part]}


def _rows(parts: dict[str, Path]) -> list[dict[str, Any]]:
    from tasks.episodes.shards import read_summary

    return [{"part": name, **row} for name, folder in parts.items() for row in read_summary(folder)]


def _chosen(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if args.id is not None:
        exact = [r for r in rows if r["id"] == args.id]
        rows = exact or [r for r in rows if r["id"].startswith(args.id) or r["problem_id"].startswith(args.id)]
    if args.failed:
        return [r for r in rows if not r["success"]]
    if args.best or args.worst:
        judged = [r for r in rows if r["reward"] is not None]
        return sorted(judged, key=lambda r: r["reward"], reverse=args.best)
    return rows


def _list(args: argparse.Namespace, rows: list[dict[str, Any]], shown: list[dict[str, Any]]) -> None:
    if args.json:
        print(json.dumps(shown, ensure_ascii=False))
        return
    print(f"{'id':<52} {'type':<12} {'status':<11} {'success':<8} {'reward':>7} {'turns':>5} {'errors':>6}")
    for r in shown:
        reward = "-" if r["reward"] is None else f"{r['reward']:.3f}"
        success = {True: "yes", False: "no", None: "-"}[r["success"]]
        print(
            f"{r['id'][:52]:<52} {r['type'][:12]:<12} {r['status'][:11]:<11} {success:<8} {reward:>7} "
            f"{r['turns']:>5} {r['tool_errors']:>6}"
        )
    good = sum(r["success"] is True for r in rows)
    print(f"{len(rows)} trajectories, {good} successes" + (f"; {len(shown)} shown" if len(shown) < len(rows) else ""))


def _read(parts: dict[str, Path], wanted: dict[tuple[str, str], None]) -> dict[tuple[str, str], Trajectory]:
    from tasks.episodes.shards import read_shards

    found: dict[tuple[str, str], Trajectory] = {}
    for part, folder in parts.items():
        ids = {i for p, i in wanted if p == part}
        if not ids:
            continue
        for trajectory in read_shards(folder):
            if trajectory.id in ids:
                found[part, trajectory.id] = trajectory
                ids.discard(trajectory.id)
            if not ids:
                break
    return {key: found[key] for key in wanted}
