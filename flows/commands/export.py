"""`tutelage export`: a policy folder for other tools, trajectories as JSONL, or the figures of a run as JSON."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from flows import lookup
from flows.durable import copy_tree, digest_tree, replace_dir, sync_tree, temporary, write_durable, write_json
from flows.state import State, find_home
from specs.errors import ProgramError, StateError, UsageError
from specs.records import to_dict

EXAMPLES = {"export": "tutelage export champion exported/champion"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("what", nargs="?", metavar="POLICY", help="champion, previous, vN, a stage, init, or a folder")
    parser.add_argument("target", metavar="TARGET", help="a folder that is not there yet; with --trajectories a file")
    parser.add_argument("--program", help="the program meant; the last one run where left out")
    parser.add_argument(
        "--trajectories", metavar="NODE", help="write the trajectories of a node, or of a folder, as JSONL"
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="write the adapter that a stage trained, as PEFT reads it, and not the sum",
    )
    parser.add_argument(
        "--metrics", metavar="PROGRAM", help="write what the last run of a program measured, as `dvc.yaml` reads it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Write what was asked for."""
    state = State(find_home())
    if args.trajectories is not None:
        if args.what is not None:
            raise ProgramError("export --trajectories NODE FILE: expected no POLICY beside it")
        done = export_trajectories(state, args.trajectories, Path(args.target), args.program)
    elif args.metrics is not None:
        if args.what is not None:
            raise ProgramError("export --metrics PROGRAM FILE: expected no POLICY beside it")
        done = export_metrics(state, args.metrics, Path(args.target))
    elif args.what is None:
        raise ProgramError(f"export: expected a policy and a folder, as in `{EXAMPLES['export']}`")
    elif args.adapter:
        done = export_adapter(state, args.what, Path(args.target), args.program)
    else:
        done = export_policy(state, args.what, Path(args.target), args.program)
    print(json.dumps(done) if args.json else "\n".join(f"{k}: {v}" for k, v in done.items()))
    return 0


def export_policy(state: State, what: str, target: Path, program: str | None = None) -> dict[str, Any]:
    """Copy a policy to a new folder and compare the copy with its manifest; transformers loads it as it is."""
    from tasks.policy.store import read_manifest

    if target.exists():
        raise UsageError(f"{target}: it is there already; name a folder that is not, or remove it")
    source = lookup.policy_folder(state, what, program)
    read_manifest(source)
    aside = temporary(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        copy_tree(source, aside)
        entries = read_manifest(aside)
        sync_tree(aside)
        replace_dir(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    size = sum(e["size"] for e in entries.values())
    return {"policy": what, "folder": str(target), "digest": digest_tree(target), "bytes": size}


def export_adapter(state: State, what: str, target: Path, program: str | None = None) -> dict[str, Any]:
    """Copy the adapter of a stage to a new folder; `about.json` in it names the policy that it is added to."""
    if target.exists():
        raise UsageError(f"{target}: it is there already; name a folder that is not, or remove it")
    source = lookup.policy_folder(state, what, program).parent / "adapter"
    if not source.is_dir():
        raise UsageError(
            f"export {what} --adapter: it was not trained as an adapter, or is known as a whole alone; expected a stage "
            "of a program with policy.adapter. Without --adapter the whole policy is written"
        )
    aside = temporary(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        copy_tree(source, aside)
        sync_tree(aside)
        replace_dir(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    base = json.loads((target / "about.json").read_text(encoding="utf-8"))["base"]
    return {"policy": what, "folder": str(target), "digest": digest_tree(target), "base": base}


def _shards(folder: Path) -> list[Path]:
    """Return the shard folders in and below a node's output."""
    return sorted({p.parent for p in folder.rglob("part-*.parquet")})


def export_trajectories(state: State, node: str, target: Path, program: str | None = None) -> dict[str, Any]:
    """Write one `to_dict` record a line; each has the `shard` it came from."""
    from tasks.episodes.shards import read_shards

    folder = Path(node)
    if not folder.is_dir():
        name = program or next(iter(state.programs()), None)
        if name is None:
            raise UsageError(f"{node}: it is no folder, and no program was run here yet")
        folder = lookup.node_output(state, lookup.record_of(state, name), node)
    shards = _shards(folder)
    if not shards:
        raise UsageError(f"{folder}: it holds no trajectories; expected a node that rolls out, or a folder of shards")
    count = 0

    def write(stream: Any) -> None:
        nonlocal count
        for shard in shards:
            where = shard.relative_to(folder).as_posix()
            for trajectory in read_shards(shard):
                line = json.dumps({"shard": where, **to_dict(trajectory)}, ensure_ascii=False, allow_nan=False)
                stream.write(line.encode("utf-8") + b"\n")
                count += 1

    target.parent.mkdir(parents=True, exist_ok=True)
    write_durable(target, write)
    return {"node": node, "file": str(target), "trajectories": count}


def export_metrics(state: State, program: str, target: Path) -> dict[str, Any]:
    """Write the figures of every evaluation and gate of a program's last run, by node; the file is stable JSON."""
    record = lookup.record_of(state, program)
    measured: dict[str, dict[str, float]] = {}
    for node, end in record.nodes.items():
        receipt = state.receipt(end["run_key"]) if end.get("run_key") else None
        if receipt is not None and receipt.kind in ("evaluate", "gate"):
            measured[node] = {k: v for k, v in sorted(receipt.metrics.items()) if v is not None}
    if not measured:
        raise StateError(f"{program}: its last run measured nothing; run it to its end first")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"program": record.program, "nodes": dict(sorted(measured.items()))})
    return {"program": program, "file": str(target), "nodes": len(measured)}
