"""`tutelage evaluate`: ask any policy a program's set of problems, outside a run. Nothing is promoted, no look is spent.

The same command after a kill goes on from the rollouts that were finished.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flows import leftovers, lookup
from flows.commands.bounds import at_least, not_negative
from flows.compile import compile as compile_program
from flows.context import MetricSpool, NodeContext, Outcome
from flows.durable import remove_dir, replace_dir, temporary, write_json
from flows.leases import Lease
from flows.nodes import NODE_KINDS, Json, Node, Plan, digest, node_seed
from flows.resolve import expanded, resolve
from flows.state import State, find_home
from specs.data import DataSource
from specs.errors import BusyError, ProgramError
from specs.implicit import implicit_source
from specs.loader import load_program
from specs.program import Program

EXAMPLES = {"evaluate": "tutelage evaluate specs/programs/quickstart.yaml --policy champion --set hidden"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("file", help="program file")
    parser.add_argument("--policy", default="champion", help="champion, previous, vN, a stage, init, or a folder")
    parser.add_argument("--set", dest="set_name", required=True, metavar="NAME", help="data set of problems")
    parser.add_argument("--samples", type=at_least(1), help="samples of each problem; the program's where left out")
    parser.add_argument("--temperature", type=not_negative, help="the program's where left out")
    parser.add_argument("--no-greedy", dest="greedy", action="store_false", help="leave the greedy try out")
    parser.add_argument("--out", metavar="DIR", help="folder for metrics and trajectories")
    parser.add_argument("--json", action="store_true", help="print the metrics as JSON")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is evaluated."""

    plan: Plan
    policy: Path
    problems: Path
    params: Json
    seed: int


def run(args: argparse.Namespace) -> int:
    """Evaluate and print the metrics."""
    loaded = load_program(Path(args.file))
    state = State(find_home())
    state.prepare()
    asked = _asked(args, loaded, state)
    mark = digest([asked.params, asked.seed, str(asked.policy)])[:12]
    final = Path(args.out) if args.out else state.home / "evaluations" / f"{args.set_name}-{mark}"
    if args.out and final.exists() and any(final.iterdir()):
        raise ProgramError(f"--out {final}: it is not empty; name a folder that is, or none")
    aside = temporary(final)
    with _begun(state, asked, final) as begun:
        aside.mkdir(parents=True)
        try:
            inputs = {"policy": aside / "in", "problems": asked.problems}
            (aside / "in").mkdir()
            (aside / "in" / "policy").symlink_to(asked.policy.absolute(), target_is_directory=True)
            node = _context("evaluate", asked.params, asked, inputs, aside, begun)
            outcome = _body("evaluate", node)
            final.parent.mkdir(parents=True, exist_ok=True)
            replace_dir(node.out, final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    _print(args, final, outcome)
    return 0


@contextmanager
def _begun(state: State, asked: _Asked, final: Path) -> Iterator[Path]:
    """Yield the folder that keeps the rollouts of this evaluation until it is whole. BusyError where it is being made."""
    manifest = hashlib.sha256((asked.policy / lookup.MANIFEST).read_bytes()).hexdigest()
    version = NODE_KINDS["evaluate"].version
    name = digest([version, asked.params, asked.seed, manifest, str(asked.problems.resolve())])[:16]
    folder = leftovers.begun(state.home) / name
    for other in [f for f in leftovers.evaluations(state.home) if f != folder]:
        leftovers.remove_evaluation(other)
    lease = Lease(folder / "lease")
    with leftovers.begun_lock(state.home):
        folder.mkdir(parents=True, exist_ok=True)
        if not lease.try_acquire():
            raise BusyError(f"{folder}: the same evaluation is being made by another process; wait for it, or stop it")
    try:
        if any(p.stat().st_size for p in folder.glob("*.jsonl")):
            print("goes on from the rollouts of an evaluation that was interrupted", file=sys.stderr)
        write_json(folder / "about.json", {"result": str(final.absolute())})
        yield folder
        with leftovers.begun_lock(state.home):
            remove_dir(folder)
    finally:
        lease.release()


def _asked(args: argparse.Namespace, loaded: Any, state: State) -> _Asked:
    program: Program = loaded.program
    source = program.data.get(args.set_name) or implicit_source(args.set_name, program.environments)
    if source is None or source.kind == "demonstrations":
        known = [n for n, s in program.data.items() if s.kind != "demonstrations"]
        raise ProgramError(
            f"{args.file}: no set of problems is called {args.set_name!r}{lookup.near(args.set_name, known)}"
        )
    program = _asking(program, args.set_name, source)
    plan = compile_program(program, resolve(loaded, state_view=state))
    node = next((n for n in plan.nodes if n.kind == "evaluate" and n.params["set"] == args.set_name), None)
    if node is None:
        raise ProgramError(f"{args.file}: set {args.set_name!r} cannot be asked; name it under evaluation.sets")
    changes = {"samples": args.samples, "temperature": args.temperature}
    spec = node.params["evaluation"] | {k: v for k, v in changes.items() if v is not None}
    spec["greedy"] = spec["greedy"] and args.greedy
    if spec["temperature"] == 0 and spec["samples"] > 1:
        raise ProgramError(
            f"--samples: found {spec['samples']} at temperature 0, where every sample is the same; expected 1"
        )
    params = expanded(node.params | {"evaluation": spec}, os.environ)
    policy = lookup.policy_folder(state, args.policy, program.program)
    problems = _problems(state, plan, plan.node(node.inputs["problems"]))
    return _Asked(plan, policy, problems, params, node_seed(plan.seed, f"eval.{args.set_name}"))


def _asking(program: Program, name: str, source: DataSource) -> Program:
    """Return the program with the set among those that are evaluated; one that the environment has may be new to it."""
    program = program.model_copy(update={"data": {**program.data, name: source}})
    if name in (*program.evaluation.sets, *program.evaluation.at_the_end):
        return program
    evaluation = program.evaluation.model_copy(update={"at_the_end": [*program.evaluation.at_the_end, name]})
    return program.model_copy(update={"evaluation": evaluation})


def _problems(state: State, plan: Plan, node: Node) -> Path:
    """Return the folder with the set's records, from the run that made it, else made now beside the evaluations."""
    key = state.run_key(node, {})
    if state.receipt(key) is not None:
        found = state.out(key)
        assert found is not None, "a data node is never skipped"
        return found
    final = state.home / "evaluations" / "data" / key
    if (final / "records.jsonl").is_file():
        return final
    aside = temporary(final)
    aside.mkdir(parents=True)
    try:
        params = expanded(node.params, os.environ)
        (aside / "ckpt").mkdir()
        context = _context(
            node.kind, params, _Asked(plan, Path(), Path(), params, node.seed), {}, aside, aside / "ckpt"
        )
        _body(node.kind, context)
        replace_dir(context.out, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def _context(
    kind: str, params: Json, asked: _Asked, inputs: dict[str, Path], folder: Path, checkpoints: Path
) -> NodeContext:
    out = folder / "out"
    out.mkdir()
    return NodeContext(
        id=f"command.{kind}",
        kind=kind,
        params=params,
        execution=asked.plan.execution,
        seed=asked.seed,
        inputs=inputs,
        out=out,
        checkpoints=checkpoints,
        metrics=MetricSpool(folder / "metrics.jsonl"),
        stop=lambda: False,
        progress=lambda what, share, figures: None,
        home=find_home(),
        say=lambda text: print(text, file=sys.stderr),
    )


def _body(kind: str, node: NodeContext) -> Outcome:
    module, _, name = NODE_KINDS[kind].entry.partition(":")
    with node.at_end:
        return getattr(import_module(module), name)(node)


def _print(args: argparse.Namespace, folder: Path, outcome: Outcome) -> None:
    summary = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    if args.json:
        kept = ("set", "role", "policy_digest", "samples", "temperature", "metrics", "counts", "types", "pass_at_k")
        print(json.dumps({"folder": str(folder), **{k: summary[k] for k in kept}}, indent=1))
        return
    counts = summary["counts"]
    print(f"{args.policy} on {summary['set']}: {counts['problems']} problems, {counts['asked']} samples, {folder}")
    for name, found in summary["metrics"].items():
        value = "-" if found["value"] is None else f"{found['value']:.4f}  [{found['low']:.4f}, {found['high']:.4f}]"
        print(f"  {name:<18} {value}")
    for note in outcome.notes:
        print(f"note: {note}")
