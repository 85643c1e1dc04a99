"""The demo, timed from the command to the end, with services on, in a fresh home; three seeds."""

from statistics import median

from tests.bench.common import QUICKSTART, fresh_home, measured, report, tutelage


def main() -> None:
    rows = []
    for seed in (17, 18, 19):
        with fresh_home() as home:
            seconds, done = tutelage("run", str(QUICKSTART), "--set", f"seed={seed}", home=home)
            found = measured(home)
            metrics = found.get("eval.harden@1.hidden") or found.get("eval.rl.hidden", {})
        rows.append(
            {
                "seed": seed,
                "seconds": round(seconds, 1),
                "exit": done.returncode,
                "success": metrics.get("success"),
                "greedy": metrics.get("success_greedy"),
            }
        )
    figure = median(r["seconds"] for r in rows)
    holds = figure < 390 and all(r["success"] and r["success"]["low"] >= 0.85 for r in rows)
    report(
        "quickstart",
        figure,
        "< 390 s with a round of the flywheel, lower bound of hidden success >= 0.85",
        holds=holds,
        detail={"runs": rows},
    )


if __name__ == "__main__":
    main()
