"""Run every measurement and write the table of docs/benchmarks.md; the words around it stay."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import date

from tests.bench.common import ROOT

NAMES = (
    "check_speed",
    "quickstart",
    "repeat",
    "overhead",
    "quickstart_search",
    "alignment",
    "sft_vs_trl",
    "grpo_vs_trl",
    "opd_vs_trl",
)


PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- measured -->", "<!-- end -->"


def table(names: Sequence[str]) -> list[str]:
    """Run measurements one after the other and return the lines of their table."""
    lines = [
        f"Measured {date.today().isoformat()} on {os.cpu_count()} cores, Python {platform.python_version()}. "
        "Each row is printed by `python -m tests.bench.<name>`.",
        "",
        "| measurement | figure | bound | holds |",
        "|---|---|---|---|",
    ]
    for name in names:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{name}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        try:
            row = json.loads(last)
        except ValueError:
            row = {"figure": "no result", "bound": "", "holds": False}
            print(done.stderr[-2000:], file=sys.stderr)
        lines.append(f"| {name} | {row['figure']} | {row['bound']} | {'yes' if row['holds'] else 'no'} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all, and the page, where left out"
    )
    names = options.parse_args().names or list(NAMES)
    if unknown := set(names) - set(NAMES):
        raise SystemExit(f"no measurement is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.partition(END)[2]
    lines = table(names)
    if set(names) != set(NAMES):
        return  # the table is of one machine and day
    PAGE.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"]), encoding="utf-8")


if __name__ == "__main__":
    main()
