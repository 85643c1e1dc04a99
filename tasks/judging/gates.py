"""Gates: pass, fail or inconclusive, from evidence alone; the same evidence gives the same record.

- Every row is a claim that people read on its own, so Holm's correction runs over the rows of a gate, once for the
  claims that requirements hold and once for the claims that they do not.
- Each look at the same sets spends part of alpha (`tasks.statistics.looks`); where none is left, nothing is decided.
- Missing, invalid or damaged evidence is never a pass.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specs.gates import Gate
from tasks.judging.requirements import Examined, Row, examine, finish, needs_baseline
from tasks.judging.results import Evaluated, Unusable
from tasks.statistics.holm import adjust, levels
from tasks.statistics.looks import Asked, level_of, look_at

Answer = Literal["pass", "fail", "inconclusive", "already_promoted", "superseded"]
Result = Literal["completed", "gate_failed", "held", "already_promoted"]
_RESULTS: dict[str, Result] = {
    "pass": "completed", "fail": "gate_failed", "already_promoted": "already_promoted", "superseded": "already_promoted",
}  # fmt: skip
_UNDECIDED: dict[str, Result] = {"hold": "held", "fail": "gate_failed", "pass_on": "completed"}
SETTLED: tuple[Answer, ...] = ("already_promoted", "superseded")
"""Answers that ask nothing of the sets: the candidate is the champion, or was it until another took its place."""
FORMAT = 1
LISTED = 50
"""Changed problems that the record lists by name; all are counted."""


@dataclass(slots=True)
class Evidence:
    """Everything that a gate may look at."""

    candidates: dict[str, dict[str, Evaluated | Unusable]]
    """Stage -> set -> evaluation, in the order of the program; all stages where the best is chosen, else one."""
    baseline: dict[str, Evaluated | Unusable] | None = None
    """Set -> evaluation; None where there is no baseline yet."""
    baseline_name: str = "champion"
    champion_digest: str | None = None
    former: list[str] = field(default_factory=list)
    """Digests of the policies that once were champion and gave way."""
    asked: list[Asked] = field(default_factory=list)
    """The policies that this gate asked these sets about before, in order; each is a look."""
    contents: dict[str, str] = field(default_factory=dict)
    """Set -> digest of the problems by which its looks are counted."""


@dataclass(slots=True)
class GateRecord:
    """The verdict with everything that led to it."""

    gate: str
    answer: Answer
    sentence: str
    candidate: str | None
    candidate_digest: str | None
    baseline: str | None
    baseline_digest: str | None
    alpha: float
    look: int
    looks: int
    alpha_of_look: float
    alpha_before: float = 0.0
    """What the looks before this one spent."""
    champion: str | None = None
    """Digest of the champion that was judged with; None where there was none."""
    result: Result = "held"
    """What follows from the answer, and from what the gate declares for an undecided one."""
    contents: dict[str, str] = field(default_factory=dict)
    """Set -> digest of the problems by which its looks are counted."""
    rows: list[Row] = field(default_factory=list)
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Set -> problems that the candidate newly solves or newly breaks against the baseline."""
    seeds: dict[str, int | None] = field(default_factory=dict)
    """Set -> seed of the candidate's rollouts; None where the evaluation names none."""
    notes: list[str] = field(default_factory=list)
    text: str = ""

    @property
    def spent(self) -> float:
        """Return the alpha that this decision spent: none where nothing was tested."""
        return self.alpha_of_look if any(r.p is not None for r in self.rows) else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready data."""
        return {"format": FORMAT, **asdict(self)}


def result_of(answer: str, gate: Gate) -> Result:
    """Return what follows from an answer."""
    return _UNDECIDED[gate.on_inconclusive] if answer == "inconclusive" else _RESULTS[answer]


def choose_best(candidates: dict[str, dict[str, Evaluated | Unusable]], first_set: str) -> tuple[str | None, str]:
    """Return the stage with the highest success on `first_set` (the earliest of equals) and a sentence about it."""
    scores: dict[str, float] = {}
    for stage, sets in candidates.items():
        evaluated = sets.get(first_set)
        if evaluated is None or isinstance(evaluated, Unusable):
            reason = "it was not evaluated" if evaluated is None else evaluated.reason
            return None, f"the best stage cannot be chosen: {stage} on {first_set}: {reason}"
        valid = [r for r in evaluated.problems.values() if r.valid]
        scores[stage] = sum(r.successes / r.valid for r in valid) / len(valid) if valid else -1.0
    if not scores:
        return None, "the best stage cannot be chosen: no stage was evaluated"
    best = max(scores, key=lambda s: scores[s])
    listed = ", ".join(f"{s} {v:.4f}" for s, v in scores.items())
    return best, (
        f"{best} was chosen among {len(scores)} stages by its success on {first_set} ({listed}); "
        f"the best of several looks better than it is, so p-values on {first_set} are multiplied by {len(scores)}"
    )


def decide(gate: Gate, name: str, evidence: Evidence) -> GateRecord:
    """Return the gate's record; pure."""
    first_set = gate.require[0].set
    notes: list[str] = []
    choices = 1
    stage: str | None
    if gate.candidate == "best":
        stage, note = choose_best(evidence.candidates, first_set)
        notes.append(note)
        choices = len(evidence.candidates)
    else:
        stage = next(iter(evidence.candidates), None)
    sets = evidence.candidates.get(stage, {}) if stage is not None else {}
    digest = _digest(sets)
    look, before, others = look_at(digest, evidence.asked)
    record = GateRecord(
        gate=name,
        answer="inconclusive",
        sentence="",
        candidate=stage,
        candidate_digest=digest,
        baseline=evidence.baseline_name if evidence.baseline is not None else None,
        baseline_digest=_digest(evidence.baseline or {}),
        alpha=gate.alpha,
        look=look,
        looks=gate.looks,
        alpha_of_look=level_of(gate.alpha, gate.looks, look, others),
        alpha_before=before,
        champion=evidence.champion_digest,
        contents=dict(evidence.contents),
        seeds={s: e.metrics.get("seed") for s, e in sets.items() if isinstance(e, Evaluated)},
        notes=notes,
    )
    _answer(record, gate, evidence, sets, choices)
    record.result = result_of(record.answer, gate)
    record.text = table(record)
    return record


def _digest(sets: dict[str, Evaluated | Unusable]) -> str | None:
    """Return the one digest that all usable evaluations share; None where they name none or several."""
    digests = {e.policy_digest for e in sets.values() if isinstance(e, Evaluated)}
    return digests.pop() if len(digests) == 1 else None


def _answer(
    record: GateRecord, gate: Gate, evidence: Evidence, sets: dict[str, Evaluated | Unusable], choices: int
) -> None:
    if record.candidate is None:
        record.sentence = record.notes[-1] if record.notes else "there is no candidate"
        return
    if record.candidate_digest is not None and record.candidate_digest == evidence.champion_digest:
        record.answer = "already_promoted"
        record.sentence = f"{record.candidate} already is the champion ({record.candidate_digest[:12]})"
        return
    if record.candidate_digest in evidence.former:
        record.answer = "superseded"
        record.sentence = (
            f"{record.candidate} was the champion before another took its place ({record.candidate_digest[:12]}); "
            "only a person brings it back, with `tutelage promote` or `tutelage rollback`"
        )
        return
    if record.alpha_of_look <= 0.0:
        record.sentence = _used_up(record)
        return
    tests = [_examine(i, gate, evidence, sets, choices) for i in range(len(gate.require))]
    _correct(tests, record.alpha_of_look)
    record.rows = [t.row for t in tests]
    record.changed = _changed(tests)
    if evidence.baseline is None and any(needs_baseline(r) for r in gate.require):
        record.notes.append("first run: there is no champion yet, only what needs no baseline was asked")
    _combine(record, sets)


def _used_up(record: GateRecord) -> str:
    """Say that no look is left; more of them help only where there is alpha that they may spend."""
    times = f"the sets were asked {record.look - 1} times"
    if level_of(record.alpha, record.look, record.look, record.alpha_before) > 0.0:
        return (
            f"{times}, {record.looks} declared, and are used up; draw new problems (another seed), or declare more looks: "
            f"{record.alpha - record.alpha_before:.4g} of alpha is left for them"
        )
    return (
        f"{times} and are used up: alpha {record.alpha:g} is spent, and only new problems help; "
        "declare the sets under `data` with another seed, or other files"
    )


def _examine(
    index: int, gate: Gate, evidence: Evidence, sets: dict[str, Evaluated | Unusable], choices: int
) -> Examined:
    requirement = gate.require[index]
    candidate = sets.get(requirement.set, Unusable(f"it was not evaluated on {requirement.set}"))
    baseline: Evaluated | Unusable | None = None
    if evidence.baseline is not None:
        missing = Unusable(f"{evidence.baseline_name} was not evaluated on {requirement.set}")
        baseline = evidence.baseline.get(requirement.set)
        if baseline is None and needs_baseline(requirement):
            baseline = missing
    return examine(
        requirement,
        candidate,
        baseline,
        max_invalid=gate.max_invalid,
        choices=choices if requirement.set == gate.require[0].set else 1,
    )


def _correct(tests: list[Examined], alpha: float) -> None:
    """Apply Holm's correction to both families and answer each tested row; untested rows count as p = 1."""
    open_rows = [t for t in tests if t.tested or (t.row.answer == "inconclusive" and t.row.metric != "regressed_cases")]
    holds = [t.row.p if t.row.p is not None else 1.0 for t in open_rows]
    breaks = [t.row.p_fail if t.row.p_fail is not None else 1.0 for t in open_rows]
    for t, p, level, q, fail_level in zip(
        open_rows, adjust(holds), levels(holds, alpha), adjust(breaks), levels(breaks, alpha), strict=True
    ):
        if not t.tested:
            continue
        t.row.p_adjusted, t.row.p_fail_adjusted, t.row.level = p, q, level
        t.row.answer = "pass" if p <= alpha else "fail" if q <= alpha else "inconclusive"
        finish(t, level, fail_level)


def _changed(tests: list[Examined]) -> dict[str, dict[str, Any]]:
    changed: dict[str, dict[str, Any]] = {}
    for t in tests:
        if t.changed is None or t.row.set in changed:
            continue
        solved, broken = t.changed
        changed[t.row.set] = {
            "metric": t.row.metric,
            "newly_solved": solved[:LISTED],
            "newly_broken": broken[:LISTED],
            "newly_solved_count": len(solved),
            "newly_broken_count": len(broken),
        }
    return changed


def _combine(record: GateRecord, sets: dict[str, Evaluated | Unusable]) -> None:
    by_answer = {a: [r for r in record.rows if r.answer == a] for a in ("pass", "fail", "inconclusive")}
    digests = {e.policy_digest for e in sets.values() if isinstance(e, Evaluated)}
    if len(digests) > 1:
        record.sentence = f"the evaluations of {record.candidate} are of {len(digests)} different policies"
    elif by_answer["fail"]:
        record.answer = "fail"
        record.sentence = f"{record.candidate} fails: " + "; ".join(r.sentence for r in by_answer["fail"])
    elif by_answer["inconclusive"]:
        record.sentence = f"{record.candidate} is undecided: " + "; ".join(
            r.sentence for r in by_answer["inconclusive"]
        )
    elif by_answer["pass"]:
        record.answer = "pass"
        count = len(by_answer["pass"])
        left = len(record.rows) - count
        record.sentence = f"{record.candidate} meets {'its requirement' if count == 1 else f'all {count} requirements'}"
        record.sentence += f" ({left} not applicable)" if left else ""
    else:
        record.sentence = "no requirement could be asked without a baseline; state one with at_least or at_most"


def _number(value: float | None, form: str = ".4f") -> str:
    return "-" if value is None else format(value, form)


def table(record: GateRecord) -> str:
    """Return the record as a plain text table with its sentences."""
    head = ("requirement", "value", "baseline", "effect", "interval", "p", "level", "n", "answer")
    lines: list[tuple[str, ...]] = [head]
    for r in record.rows:
        interval = "-" if r.interval is None else f"[{r.interval[0]:.4f}, {r.interval[1]:.4f}]"
        lines.append((
            f"{r.metric} on {r.set} {r.kind} {r.bound:g}", _number(r.value), _number(r.baseline),
            _number(r.effect, "+.4f"), interval, _number(r.p, ".3g"), _number(r.level, ".3g"), str(r.n),
            r.answer.replace("_", " "),
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    body = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    spent = f"look {record.look} of {record.looks}, alpha {record.alpha_of_look:.4g} of {record.alpha:g}"
    seeds = ", ".join(f"{s} {seed}" for s, seed in record.seeds.items() if seed is not None)
    spent += f", seeds: {seeds}" if seeds else ""
    answer = record.answer.replace("_", " ")
    first = f"gate {record.gate}: {answer} (candidate {record.candidate or '-'}, baseline {record.baseline or '-'}, {spent})"
    parts = [first, *(body if record.rows else []), record.sentence, *(f"note: {n}" for n in record.notes)]
    return "\n".join(parts) + "\n"
