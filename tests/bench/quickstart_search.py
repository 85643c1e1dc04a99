"""Which settings make each stage of the quickstart gain outside its interval, over three seeds.

Each candidate is the shipped program with a few settings changed, run whole through the command line in a
home of its own and asked 800 unseen problems after every stage. `--only NAME` measures one candidate;
`--seeds N` takes fewer seeds; `--program FILE` another program.

    python -m tests.bench.quickstart_search --only shipped
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tests.bench.common import QUICKSTART, fresh_home, measured, report, tutelage

# What was tried, and what is shipped: settings that differ from the program file.
CANDIDATES: dict[str, dict[str, Any]] = {
    "shipped": {},
    "clean_demonstrations": {"data.demos.spoil.share": 0.0},
    "strong_rft": {"stages.1.algorithm.problems": 1000, "stages.1.algorithm.epochs": 2},
    "no_rft": {"stages.1.algorithm.problems": 10},
    "adamw_everywhere": {
        "stages.0.algorithm.optimizer.kind": "adamw",
        "stages.0.algorithm.optimizer.learning_rate": 3e-3,
    },
    "high_rl_rate": {"stages.2.algorithm.optimizer.learning_rate": 1e-3},
    "digits_one_by_one": {"policy.init.tokenizer.digit_group": 1},
}
SEEDS = (17, 18, 19)
POLICIES = ("init", "teach", "harvest", "rl")


def run(settings: dict[str, Any], seed: int, program: Path) -> dict[str, Any]:
    """Return success after each stage, sampled and greedy, and the wall seconds."""
    overrides = {**settings, "seed": seed, "evaluation.sets": ["hidden"]}
    arguments = [x for k, v in overrides.items() for x in ("--set", f"{k}={json.dumps(v)}")]
    with fresh_home() as home:
        seconds, done = tutelage("run", str(program), "--no-services", *arguments, home=home)
        metrics = measured(home)
    if not metrics:
        raise SystemExit(f"the run gave nothing (exit {done.returncode}):\n{done.stderr[-3000:]}")
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "exit": done.returncode,
        "stages": {
            p: {k: metrics[f"eval.{p}.hidden"][k] for k in ("success", "success_greedy")}
            for p in POLICIES
            if f"eval.{p}.hidden" in metrics
        },
    }


def staircase(runs: list[dict[str, Any]]) -> tuple[bool, list[str]]:
    """Return whether every stage gained outside its interval in every seed, and the lines of the table."""
    lines, climbs = [], True
    for r in runs:
        cells, before = [], None
        for policy, m in r["stages"].items():
            s = m["success"]
            cells.append(f"{policy} {s['value']:.3f} [{s['low']:.3f}, {s['high']:.3f}]")
            if before is not None and s["low"] <= before["high"]:
                climbs = False
                cells[-1] += " (inside)"
            before = s
        greedy = r["stages"]["rl"]["success_greedy"]["value"] if "rl" in r["stages"] else float("nan")
        lines.append(f"  seed {r['seed']}: {' -> '.join(cells)}; greedy {greedy:.3f}; {r['seconds']} s")
        climbs = climbs and len(r["stages"]) == len(POLICIES)
    return climbs, lines


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--only", choices=sorted(CANDIDATES))
    options.add_argument("--seeds", type=int, default=len(SEEDS))
    options.add_argument("--program", type=Path, default=QUICKSTART)
    chosen = options.parse_args()
    results: dict[str, Any] = {}
    for name, settings in CANDIDATES.items():
        if chosen.only in (None, name):
            runs = [run(settings, seed, chosen.program) for seed in SEEDS[: chosen.seeds]]
            climbs, lines = staircase(runs)
            print(f"{name}: {'every stage gains' if climbs else 'not every stage gains'}", *lines, sep="\n", flush=True)
            results[name] = {"climbs": climbs, "runs": runs}
    finals = [
        r["stages"]["rl"]["success"]["value"] for r in results.get("shipped", {}).get("runs", []) if "rl" in r["stages"]
    ]
    figure = min(finals, default=0.0)
    holds = bool(finals) and results["shipped"]["climbs"] and figure >= 0.88
    report(
        "quickstart_search",
        figure,
        "sampled hidden success >= 0.88 in each seed, each stage gains",
        holds=holds,
        detail=results,
    )


if __name__ == "__main__":
    main()
