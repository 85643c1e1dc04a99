"""Pairs of a preferred and a rejected trajectory: which are made of rollouts, and which of them can train."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specs.errors import DataError, TrainingError
from specs.preference import Pairing
from specs.records import NOT_TRAINED, Pair, Trajectory
from tasks.learning.rows import TrainingRow, rows_from


@dataclass(slots=True)
class PairReport:
    """Pairs that are left, and what became of the others."""

    pairs: list[Pair] = field(default_factory=list)
    problems: int = 0
    unusable: dict[str, int] = field(default_factory=dict)
    """Reason -> trajectories: `infrastructure, invalid, truncated, token_drift, unfinished` (a success that did not
    end)."""
    without: dict[str, int] = field(default_factory=dict)
    """Reason -> problems without a pair: `no_success, no_failure, tie`."""
    ties: int = 0
    """Pairs whose rewards do not differ by more than the margin."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> pairs that cannot train (see `pair_rows`)."""
    cut: int = 0
    """Pairs of which a side was shortened to the policy's length."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        margins = [p.margin for p in self.pairs]
        return {
            "pairs": len(self.pairs),
            "problems": self.problems,
            "problems_with_pairs": len({p.problem_id for p in self.pairs}),
            "margin_mean": sum(margins) / len(margins) if margins else None,
            "cut": self.cut,
            "ties": self.ties,
            **{name: dict(sorted(getattr(self, name).items())) for name in ("unusable", "without", "dropped")},
        }

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        lines = [f"{n} trajectories are in no pair: {reason}" for reason, n in sorted(self.unusable.items())]
        lines += [f"{n} problems gave no pair: {reason}" for reason, n in sorted(self.without.items())]
        lines += [f"{n} pairs left out: {reason}" for reason, n in sorted(self.dropped.items())]
        lines += [f"{self.ties} pairs left out: their rewards differ by no more than the margin"] if self.ties else []
        return lines + ([f"{self.cut} pairs have a side that was cut to the policy's length"] if self.cut else [])


def pair_indices(
    scores: Sequence[float], margin: float, choose: Literal["best_worst", "all"]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return (chosen, rejected) indices whose scores differ by more than the margin, and those that are ties.

    `all` pairs in order of index, or the best with the worst, the first of equals each.
    """
    order = range(len(scores))
    if choose == "best_worst":
        asked = [(max(order, key=lambda i: scores[i]), min(order, key=lambda i: scores[i]))] if len(scores) > 1 else []
    else:
        asked = [(i, j) if scores[i] >= scores[j] else (j, i) for i in order for j in order if i < j]
    apart = [scores[i] - scores[j] > margin for i, j in asked]
    return [p for p, a in zip(asked, apart, strict=True) if a], [p for p, a in zip(asked, apart, strict=True) if not a]


def pair_up(trajectories: Iterable[Trajectory], spec: Pairing) -> PairReport:
    """Return pairs of judged trajectories. What is chosen has succeeded and finished; ties give none."""
    report = PairReport()
    problems: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        members = problems.setdefault(trajectory.problem_id, [])
        reason = unusable(trajectory)
        if reason:
            _count(report.unusable, reason)
        else:
            members.append(trajectory)
    report.problems = len(problems)
    for problem_id, members in problems.items():
        made, ties, reason = _of_problem(problem_id, members, spec)
        report.pairs += made
        report.ties += ties
        if reason:
            _count(report.without, reason)
    return report


def _of_problem(problem_id: str, members: list[Trajectory], spec: Pairing) -> tuple[list[Pair], int, str | None]:
    """Return the pairs of one problem, how many were ties, and why there is none."""
    ranked = sorted(members, key=lambda t: (not t.success, -_reward(t), t.policy_tokens, t.id))
    good, bad = [t for t in ranked if t.success], [t for t in ranked if not t.success]
    lower = bad if spec.rejected == "failed" else ranked[1:]
    if not good or not lower:
        return [], 0, "no_failure" if good else "no_success"
    assert spec.choose != "alone", "single trajectories are labelled, not paired"
    usable = [good[0], lower[-1]] if spec.choose == "best_worst" else ranked
    found, ties = (
        [(usable[i], usable[j]) for i, j in pairs if usable[i].success and usable[j] in lower]
        for pairs in pair_indices([_reward(t) for t in usable], spec.margin, spec.choose)
    )
    made = [Pair(f"{a.id}>{b.id}", problem_id, a.id, b.id, _reward(a) - _reward(b), 1 / len(found)) for a, b in found]
    return made, len(ties), None if made else "tie"


def pair_rows(
    report: PairReport, trajectories: Mapping[str, Trajectory], max_length: int
) -> list[tuple[TrainingRow, TrainingRow]]:
    """Return the rows of each pair, cut to the policy's length, and leave in the report the pairs that can train.

    Left out, and counted: `empty_side` (nothing of a side trains after the cut), `identical` and `identical_after_cut`
    (the same tokens on both sides), `beginning_after_cut` (the cut made one side the beginning of the other),
    `same_actions` (the policy wrote the same; only replies differ), `different_prompts`, `several_contexts`. A side is
    never shortened because the other one is long. DataError for a pair whose trajectory is not there.
    """
    kept: list[Pair] = []
    rows: list[tuple[TrainingRow, TrainingRow]] = []
    for pair in report.pairs:
        sides = [_side(pair, trajectories, name, max_length) for name in (pair.chosen, pair.rejected)]
        whole = [trajectories[name].ids for name in (pair.chosen, pair.rejected)]
        reason = next((s for s in sides if isinstance(s, str)), None) or _alike(sides, whole)
        if reason:
            _count(report.dropped, reason)
            continue
        chosen, rejected = sides
        assert isinstance(chosen, TrainingRow), "a side without a row has a reason"
        assert isinstance(rejected, TrainingRow), "a side without a row has a reason"
        report.cut += any(len(ids) > max_length for ids in whole)
        for row in (chosen, rejected):
            row.pair = row.group = pair.id
        chosen.preferred = True
        kept.append(pair)
        rows.append((chosen, rejected))
    report.pairs = kept
    _share_again(kept, rows)
    return rows


def _share_again(pairs: list[Pair], rows: list[tuple[TrainingRow, TrainingRow]]) -> None:
    """Make the weights of each problem's remaining pairs sum to 1; those of the rows have a mean of 1 over all pairs."""
    totals: dict[str, float] = {}
    for pair in pairs:
        totals[pair.problem_id] = totals.get(pair.problem_id, 0.0) + pair.weight
    for pair, sides in zip(pairs, rows, strict=True):
        pair.weight /= totals[pair.problem_id]
        for row in sides:
            row.weight = pair.weight * len(pairs) / len(totals)


def require_pairs(report: PairReport, spec: Pairing, stage: str) -> None:
    """Raise TrainingError, with the reasons and the ways out, where there are too few pairs to train on."""
    if len(report.pairs) >= spec.at_least:
        return
    parts = {**report.without, **report.dropped, **report.unusable}
    reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(parts.items())) or "nothing was drawn"
    raise TrainingError(
        f"stage {stage}: {len(report.pairs)} pairs of {report.problems} problems are left, expected at least "
        f"pairing.at_least, {spec.at_least} ({reasons}). Ways out: with no_success train on demonstrations first (sft) "
        f"or take easier problems; with no_failure take harder ones or a higher temperature (now {spec.temperature:g}); "
        f"with tie lower pairing.margin (now {spec.margin:g}); draw more samples (now {spec.samples})"
    )


def mismatched(rows: Sequence[TrainingRow], problems: Sequence[str], max_length: int) -> dict[int, TrainingRow]:
    """Return, by row, its prompt with the completion of a row of another problem; none where all are of one.

    The completion is as preferred as the row's own, so that both sides enter evenly. It is that of the row as many places
    on as the row's problem has rows of its side, so that the pairs of the next problem take turns.
    """
    partners: dict[int, int] = {}
    for side in (True, False):
        partners |= _partners([i for i, row in enumerate(rows) if row.preferred is side], problems)
    found: dict[int, TrainingRow] = {}
    for i, row in enumerate(rows):
        if i not in partners:
            return {}
        j = partners[i]
        prompt, other = row.mask.index(True), rows[j]
        start = other.mask.index(True)
        ids = [*row.ids[:prompt], *other.ids[start : other.length]][:max_length]
        mask = [*[False] * prompt, *other.mask[start : other.length]][:max_length]
        found[i] = TrainingRow(id=f"{row.id} with {other.id}", source=row.source, ids=ids, mask=mask)
    return found


def _partners(side: Sequence[int], problems: Sequence[str]) -> dict[int, int]:
    """Return, by row of one side, the row of another problem whose completion it is mismatched with."""
    counts = Counter(problems[i] for i in side)
    found: dict[int, int] = {}
    for at, i in enumerate(side):
        own = counts[problems[i]]
        others = (side[(at + step) % len(side)] for step in range(own, own + len(side)))
        partner = next((k for k in others if problems[k] != problems[i]), None)
        if partner is not None:
            found[i] = partner
    return found


def unusable(trajectory: Trajectory) -> str | None:
    """Return why a trajectory is on no side; None where it may be."""
    if trajectory.status == "infrastructure":
        return "infrastructure"
    if trajectory.success is None or trajectory.reward is None or not math.isfinite(trajectory.reward):
        return "invalid"
    if trajectory.status == "truncated":
        return "truncated"
    if NOT_TRAINED in trajectory.tags:
        return "token_drift"
    return "unfinished" if trajectory.success and trajectory.status != "finished" else None


def _side(pair: Pair, trajectories: Mapping[str, Trajectory], name: str, max_length: int) -> TrainingRow | str:
    """Return the row of one side, or why it has none."""
    if name not in trajectories:
        raise DataError(f"pair {pair.id}: there is no trajectory {name} beside it; make the pairs again")
    rows, report = rows_from([trajectories[name]], max_length=max_length, truncated="score")
    if len(rows) > 1:
        return "several_contexts"
    if rows:
        return rows[0]
    reason = next(iter(report.dropped))
    return "empty_side" if reason == "no_supervised_token" else reason


def _alike(sides: Sequence[TrainingRow | str], whole: Sequence[list[int]]) -> str | None:
    """Return why two rows do not differ in a way that teaches, or None."""
    chosen, rejected = (s for s in sides if isinstance(s, TrainingRow))
    a, b = chosen.ids[: chosen.length], rejected.ids[: rejected.length]
    first, second = chosen.mask.index(True), rejected.mask.index(True)
    if a[:first] != b[:second]:
        return "different_prompts"
    if a == b:
        return "identical" if whole[0] == whole[1] else "identical_after_cut"
    shorter, longer = sorted((a, b), key=len)
    was_cut = len(whole[0]) > len(chosen.ids) or len(whole[1]) > len(rejected.ids)
    if was_cut and longer[: len(shorter)] == shorter:
        return "beginning_after_cut"
    written = [[t for t, m in zip(r.ids, r.mask, strict=True) if m] for r in (chosen, rejected)]
    return "same_actions" if written[0] == written[1] else None


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None, "a trajectory without a reward is in no pair"
    return trajectory.reward


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
