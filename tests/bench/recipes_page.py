"""docs/recipes.md: the words of a section are written by hand, the tables between its marks by the measurement."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from specs.checks import COMPRESSED
from specs.distillation import OPD
from specs.policy_gradient import PolicyGradient
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
    tokens: tuple[int, int, int] | None = None
    """Of a distillation: generated, scored by teachers, trained."""


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
    lines += ["", *_claims(results, program), *_ratios(results, program)]
    start = [mean(seconds) for seconds in zip(*((r.start_wall, r.start_cpu) for r in results), strict=True)]
    lines.append(
        f"A seed takes {_range([r.wall for r in results])} s with {first.parallel} nodes at once and "
        f"{_range([r.cpu for r in results])} processor seconds, {start[0]:.0f} and {start[1]:.0f} of them for the first policy."
    )
    lines += [*_tokens(results), *_profile(results, sets)]
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def _ratios(results: Sequence[Result], program: Program) -> list[str]:
    """Return how many rollouts policy gradients alone need to come as near to a teacher as what it taught.

    For each gate that holds a stage taught by its probabilities against a stage; near is the teacher's own 95 % interval.
    """
    lines: list[str] = []
    learners = {s.id: s.algorithm for s in program.stages}
    for gate in program.gates.values():
        taught, teacher, name = gate.candidate, gate.baseline.stage, gate.require[0].set
        if gate.require[0].no_worse_by is None or not isinstance(learners.get(taught), OPD) or teacher is None:
            continue
        rows = {row.id: [r.stages[i] for r in results] for i, row in enumerate(results[0].stages) if name in row.found}
        mean_of = {
            i: mean(success(r.evaluated(s, name)) for r, s in zip(results, own, strict=True)) for i, own in rows.items()
        }
        least = mean(
            r.evaluated(s, name).metrics["metrics"]["success"]["low"]
            for r, s in zip(results, rows[teacher], strict=True)
        )
        spent = mean(s.rollouts for s in rows[taught])
        said = "reaches" if mean_of[taught] >= least else "does not reach"
        line = f"`{taught}` {said} the 95 % interval of `{teacher}`, from {least:.3f} on, with {spent:.0f} rollouts"
        alone = _alone(program, rows, rows[taught][0].start)
        near = [(count, i) for i, count in alone.items() if mean_of[i] >= least]
        if near:
            count, first = min(near)
            line += f"; a policy gradient alone, from the same start, with {count:.0f} (`{first}`): {count / spent:.1f} times as many"
        elif alone:
            most = max(alone.values())
            line += f"; a policy gradient alone, from the same start, not with {most:.0f}: more than {most / spent:.1f} times as many"
        lines.append(f"{line}.")
    return lines


def _alone(program: Program, rows: Mapping[str, Sequence[StageRow]], start: str | None) -> dict[str, float]:
    """Return the policies that policy gradients without a teacher made from a start, with all rollouts since then."""
    found: dict[str, float] = {}
    for stage in program.stages:
        row = rows.get(stage.id, ())
        if not row or not isinstance(stage.algorithm, PolicyGradient) or stage.algorithm.distill is not None:
            continue
        before = 0.0 if row[0].start == start else found.get(row[0].start or "")
        if before is not None:
            found[stage.id] = before + mean(r.rollouts for r in row)
    return found


def _tokens(results: Sequence[Result]) -> list[str]:
    """Return a table of what distillations generated, had scored and trained on, where one of them is short."""
    kinds = {s.type for s in results[0].stages}
    if "short_opd" not in kinds:
        return []
    lines = ["", "| distillation | type | generated tokens | scored | trained |", "|---|---|---|---|---|"]
    for i, row in enumerate(results[0].stages):
        spent = [r.stages[i].tokens for r in results]
        if row.tokens is not None:
            means = (mean(s[k] for s in spent if s is not None) for k in range(3))
            lines.append(f"| {row.id} | {row.type} | {' | '.join(f'{m:.0f}' for m in means)} |")
    return lines


def _profile(results: Sequence[Result], sets: Sequence[str]) -> list[str]:
    """Return success by problem type before a policy was made smaller, after, and after what followed."""
    stages = results[0].stages
    smaller = [s for s in stages if s.type in COMPRESSED]
    if not smaller or not sets:
        return []
    first = next(i for i, s in enumerate(stages) if s.id == smaller[0].start)
    shown = [i for i in range(first, len(stages)) if sets[0] in stages[i].found]
    found = {i: _by_type([r.evaluated(r.stages[i], sets[0]) for r in results]) for i in shown}
    lines = [
        "",
        f"| success by type on {sets[0]} | {' | '.join(stages[i].id for i in shown)} |",
        f"|---|{'---|' * len(shown)}",
    ]
    kinds = list(dict.fromkeys(kind for by_type in found.values() for kind in by_type))
    return lines + [f"| {k} | {' | '.join(f'{found[i][k]:.3f}' for i in shown)} |" for k in sorted(kinds)]


def _by_type(evaluations: Sequence[Evaluated]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for evaluated in evaluations:
        for p in evaluated.problems.values():
            if p.valid:
                values.setdefault(p.type, []).append(p.successes / p.valid)
    return {kind: mean(found) for kind, found in values.items()}


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
