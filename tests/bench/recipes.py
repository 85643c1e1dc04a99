"""Every recipe of `specs/recipes`, run and read; the tables of docs/recipes.md.

    python -m tests.bench.recipes [NAME ...] [--seeds 3] [--home DIR] [--dry]

Recipes share a home, so that their common start policy is trained once per seed. A run that is all reused keeps the
seconds that were taken when it was made; one that reuses some nodes counts what it ran. The bound is on wall seconds of one
seed, the start policy's included, with two nodes at once on two cores that nothing else uses; processor seconds are those of
all nodes together, and say the same on a machine that others use meanwhile. `--dry` prints the tables and leaves the page alone.
"""

import argparse
import json
import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specs.distillation import OPD
from specs.loader import load_program
from specs.program import Program
from specs.teacher_choice import measured
from tasks.loops.distill import trained_tokens
from tests.bench.common import ROOT, report, tutelage
from tests.bench.recipes_page import Result, StageRow, write_page

FOLDER = ROOT / "specs" / "recipes"
HOME = ROOT / ".tutelage" / "recipes"
SEEDS = (17, 18, 19, 20, 21)
BOUND = 240.0
"""Wall seconds of one seed on two cores."""
PARALLEL = 2
"""Nodes at once for which the bound is meant."""
FINISHED = (0, 3, 7)
"""Exit codes of a run that came to its end, whatever its gates said."""


def recipes() -> list[Path]:
    """Return the files of all recipes."""
    return sorted(p for p in FOLDER.glob("*.yaml") if p.stem != "base")


def _timed(home: Path, *arguments: str) -> tuple[float, float, int, dict[str, Any]]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall, done = tutelage("run", *arguments, "--no-services", "--json", home=home)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode not in FINISHED:
        raise SystemExit(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return wall, cpu, done.returncode, json.loads(done.stdout)


def _kept(path: Path, keys: list[str]) -> dict[str, Any] | None:
    """Return the seconds that were taken when the same nodes were made."""
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if found["keys"] == keys else None


def _keys(told: dict[str, Any]) -> list[str]:
    return sorted({n["run_key"] for n in told["nodes"] if n["run_key"] and n["status"] != "left out"})


def _taken(folder: Path, name: str, keys: list[str], wall: float, cpu: float) -> tuple[float, float]:
    """Return wall and processor seconds; those of the first time where the nodes were reused."""
    path = folder / f"{name}.json"
    if (kept := _kept(path, keys)) is not None:
        return kept["wall"], kept["cpu"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"keys": keys, "wall": wall, "cpu": cpu}), encoding="utf-8")
    return wall, cpu


def run(path: Path, seed: int, home: Path, parallel: int) -> Result:
    """Run one recipe: first its first stage, which others may share, then the rest."""
    program = load_program(path).program
    seconds = home / ("seconds" if parallel == PARALLEL else f"seconds-{parallel}")
    asked = (str(path), "--set", f"seed={seed}", "--set", f"run.parallel={parallel}")
    wall, cpu, _, told = _timed(home, *asked, "--until", program.stages[0].id)
    first = next(n for n in told["nodes"] if n["node"] == program.stages[0].id)
    start_wall, start_cpu = _taken(seconds, f"start-{str(first['run_key'])[:32]}", [first["run_key"]], wall, cpu)
    wall, cpu, code, told = _timed(home, *asked)
    rest_wall, rest_cpu = _taken(seconds, f"{path.stem}-{seed}", _keys(told), wall, cpu)
    return Result(
        recipe=path.stem,
        seed=seed,
        exit_code=code,
        wall=start_wall + rest_wall,
        cpu=start_cpu + rest_cpu,
        start_wall=start_wall,
        start_cpu=start_cpu,
        parallel=parallel,
        keys=_keys(told),
        stages=_stages(program, told, home),
        gates=[f"{g['gate']}: {g.get('answer')}" for g in told["gates"]],
    )


def _stages(program: Program, told: dict[str, Any], home: Path) -> list[StageRow]:
    nodes = {n["node"]: n for n in told["nodes"]}
    rows: list[StageRow] = []
    for i, stage in enumerate(program.stages):
        own = [n for name, n in nodes.items() if name == stage.id or name.startswith(f"{stage.id}.")]
        costs = [
            json.loads((home / "nodes" / n["run_key"] / "receipt.json").read_text())["cost"]
            for n in own
            if n["run_key"]
        ]
        start = stage.start or (program.stages[i - 1].id if i else None)
        row = StageRow(stage.id, stage.algorithm.type, start, int(sum(c.get("rollouts", 0) for c in costs)))
        row.notes = [text for n in own for text in n["notes"]]
        if isinstance(stage.algorithm, OPD):
            row.tokens = _tokens(home / "nodes" / str(nodes[stage.id]["run_key"]), costs[0])
        rows.append(row)
    rows += [StageRow(name, "teacher", None, 0) for name in measured(program)]
    for row in rows:
        for name in dict.fromkeys([*program.evaluation.sets, *program.evaluation.at_the_end]):
            asked = nodes.get(f"eval.{row.id}.{name}")
            if asked is not None and asked["run_key"]:
                row.found[name] = str(home / "nodes" / asked["run_key"] / "out")
    return rows


def _tokens(node: Path, cost: dict[str, float]) -> tuple[int, int, int]:
    """Return the tokens that a distillation generated, had scored, and trained on."""
    steps = json.loads((node / "out" / "curve.json").read_text(encoding="utf-8"))["steps"]
    return int(cost["tokens"]), int(cost["taught_tokens"]), trained_tokens(steps)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", help="recipes; all where left out")
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--home", type=Path, default=HOME)
    options.add_argument("--parallel", type=int, default=PARALLEL, help="nodes at once")
    options.add_argument("--dry", action="store_true")
    chosen = options.parse_args()
    wanted = [p for p in recipes() if not chosen.names or p.stem in chosen.names]
    if unknown := set(chosen.names) - {p.stem for p in wanted}:
        raise SystemExit(
            f"no recipe is called {', '.join(sorted(unknown))}; there are {', '.join(p.stem for p in recipes())}"
        )
    chosen.home.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[Result]] = {}
    for path in wanted:
        for seed in SEEDS[: chosen.seeds]:
            found = run(path, seed, chosen.home, chosen.parallel)
            results.setdefault(path.stem, []).append(found)
            print(
                f"{path.stem}, seed {seed}: {found.wall:.0f} s, {found.cpu:.0f} CPU s, exit {found.exit_code}",
                flush=True,
            )
    write_page(results, {p.stem: load_program(p).program for p in wanted}, dry=chosen.dry)
    figure = max(r.wall for found in results.values() for r in found)
    report(
        "recipes",
        figure,
        f"< {BOUND:.0f} wall seconds of one seed on {PARALLEL} cores, {chosen.parallel} nodes at once",
        holds=figure < BOUND,
        detail={
            name: [
                {k: v for k, v in asdict(r).items() if k in ("seed", "cpu", "wall", "exit_code", "gates")}
                for r in found
            ]
            for name, found in results.items()
        },
    )


if __name__ == "__main__":
    main()
