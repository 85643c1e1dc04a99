"""docs/recipes.md: the words of a section are written by hand, the tables between its marks by the measurement."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from specs.program import Program
from tasks.judging.measures import compare_paired, measure
from tasks.judging.results import Evaluated, Unusable, try_evaluation
from tasks.statistics.paired import tango_interval
from tests.bench.common import ROOT

PAGE = ROOT / "docs" / "recipes.md"
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5 % points of Student's t, by the number of seeds."""


@dataclass(slots=True)
class StageRow:
    """One policy of a recipe, of one seed."""

    id: str
    type: str
    start: str | None
    """The policy that it is compared with: the one that it started from."""
    rollouts: int
    found: dict[str, str] = field(default_factory=dict)
    """Set -> folder of its evaluation."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Result:
    """One recipe with one seed."""

    recipe: str
    seed: int
    exit_code: int
    wall: float
    """Seconds, those of the start policy included."""
    cpu: float
    """Processor seconds of all nodes, likewise."""
    start_wall: float
    """Of them, what the recipes share."""
    start_cpu: float
    parallel: int
    """Nodes at once."""
    keys: list[str]
    stages: list[StageRow]
    gates: list[str]

    def evaluated(self, stage: StageRow, name: str) -> Evaluated:
        """Return one policy on one set."""
        read = try_evaluation(Path(stage.found[name]))
        if isinstance(read, Unusable):
            raise SystemExit(f"{self.recipe}, seed {self.seed}: {stage.id} on {name}: {read.reason}")
        return read


def success(evaluated: Evaluated) -> float:
    """Return the mean success over problems."""
    return measure(evaluated, "success").mean


def change(pairs: Sequence[tuple[Evaluated, Evaluated]]) -> tuple[float, float, float]:
    """Return the mean difference and its 95 % interval.

    One seed: over problems, paired (Tango's score interval). Several: over seeds by Student's t, so that the chance of
    training is in it.
    """
    compared = [compare_paired(measure(new, "success"), measure(old, "success"), "success") for new, old in pairs]
    effects = [c.effect for c in compared if c is not None]
    assert len(effects) == len(pairs), "policies of a recipe are asked the same problems"
    if len(effects) == 1 and compared[0] is not None:
        counts = compared[0].counts
        found = tango_interval(counts.solved, counts.broken, counts.n, 0.95)
        return effects[0], found.low, found.high
    half = _T[len(effects)] * stdev(effects) / math.sqrt(len(effects))
    return mean(effects), mean(effects) - half, mean(effects) + half


def table(results: Sequence[Result], program: Program) -> str:
    """Return the table of one recipe over its seeds, and what its gates compare."""
    first = results[0]
    sets = list(dict.fromkeys(name for row in first.stages for name in row.found))
    seeds = ", ".join(str(r.seed) for r in results)
    lines = [
        f"| policy | type | set | success, seeds {seeds} | mean | against | change [95 %] | rollouts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for i, row in enumerate(first.stages):
        for name in (s for s in sets if s in row.found):
            lines.append(_line(results, i, name))
    lines += ["", *_claims(results, program)]
    start = [mean(seconds) for seconds in zip(*((r.start_wall, r.start_cpu) for r in results), strict=True)]
    lines.append(
        f"A seed takes {_range([r.wall for r in results])} s with {first.parallel} nodes at once and "
        f"{_range([r.cpu for r in results])} processor seconds, {start[0]:.0f} and {start[1]:.0f} of them for the first policy."
    )
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def _claims(results: Sequence[Result], program: Program) -> list[str]:
    """Return a sentence for each gate that compares two stages: what it answered, and the difference over seeds."""
    lines: list[str] = []
    for name, gate in program.gates.items():
        answers = [a.split(": ")[1] for r in results for a in r.gates if a.startswith(f"{name}:")]
        said = f"Gate `{name}`: {', '.join(answers) or 'not asked'}"
        asked = gate.require[0].set
        policies = [{s.id: s for s in r.stages if asked in s.found} for r in results]
        sides = (gate.candidate, gate.baseline.stage)
        if all(side in p for p in policies for side in sides):
            new, old = (
                [r.evaluated(p[str(side)], asked) for r, p in zip(results, policies, strict=True)] for side in sides
            )
            effect, low, high = change(list(zip(new, old, strict=True)))
            said += f"; {sides[0]} against {sides[1]} {effect:+.3f} [{low:+.3f}, {high:+.3f}]"
        lines.append(f"{said}.")
    return lines


def _line(results: Sequence[Result], index: int, name: str) -> str:
    row = results[0].stages[index]
    own = [r.evaluated(r.stages[index], name) for r in results]
    values = [success(e) for e in own]
    cells = [row.id, row.type, name, " ".join(f"{v:.3f}" for v in values), f"{mean(values):.3f}"]
    before = [[s for s in r.stages if s.id == row.start and name in s.found] for r in results]
    if row.start is not None and all(before):
        old = [r.evaluated(b[0], name) for r, b in zip(results, before, strict=True)]
        effect, low, high = change(list(zip(own, old, strict=True)))
        cells += [row.start, f"{effect:+.3f} [{low:+.3f}, {high:+.3f}]"]
    else:
        cells += ["", ""]
    rollouts = mean(r.stages[index].rollouts for r in results)
    return "| " + " | ".join([*cells, f"{rollouts:.0f}" if rollouts else ""]) + " |"


def write_page(results: Mapping[str, Sequence[Result]], programs: Mapping[str, Program], *, dry: bool) -> None:
    """Print the tables and, unless `dry`, put them between their marks; a recipe without a section gets one at the end."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else "# Recipes\n"
    for name, found in results.items():
        made = table(found, programs[name])
        print(f"\n{name}: {programs[name].about}\n{made}", flush=True)
        block = f"<!-- measured: {name} -->\n{made}\n<!-- end -->"
        marked = re.compile(rf"<!-- measured: {re.escape(name)} -->.*?<!-- end -->", re.DOTALL)
        if marked.search(text):
            text = marked.sub(lambda _, block=block: block, text)
        else:
            text = f"{text.rstrip()}\n\n## {name}\n{programs[name].about}\n\n{block}\n"
    if not dry:
        PAGE.write_text(text, encoding="utf-8")
