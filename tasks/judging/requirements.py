"""One requirement of a gate against its evidence: two p-values, one for the claim and one for its opposite.

A requirement passes where "it does not hold" is refuted, fails where "it holds" is refuted, and is inconclusive
between. Shares are tested by the score test (whose inversion is Wilson's interval) at the effective number of
observations; paired differences exactly (`tasks.statistics.paired`); cases by count.
"""

from dataclasses import dataclass, field
from typing import Literal

from specs.gates import Requirement
from tasks.judging.measures import Paired, Values, compare_paired, measure
from tasks.judging.results import Evaluated, Unusable
from tasks.statistics.intervals import score_p, wilson
from tasks.statistics.paired import difference_p, lower_bound, mcnemar_exact, superiority_p, upper_bound
from tasks.statistics.power import concordant_needed, detectable_difference, problems_needed, successes_needed

RowAnswer = Literal["pass", "fail", "inconclusive", "not_applicable"]
Bound = Literal["at_least", "at_most", "no_worse_by", "better_by"]


@dataclass(slots=True)
class Row:
    """What was asked, what was found and how sure that is. None stands for "was not measured"."""

    metric: str
    set: str
    kind: Bound
    bound: float
    answer: RowAnswer = "inconclusive"
    sentence: str = ""
    value: float | None = None
    baseline: float | None = None
    effect: float | None = None
    interval: tuple[float, float] | None = None
    """Of the value, or of the effect where a baseline is compared with; its ends at the levels this row is tested at."""
    p: float | None = None
    """Of "the requirement does not hold"."""
    p_fail: float | None = None
    """Of "the requirement holds"."""
    p_adjusted: float | None = None
    p_fail_adjusted: float | None = None
    level: float | None = None
    """What `p` is compared with at its turn in Holm's order."""
    n: int = 0
    """Problems that were used."""
    n_effective: float | None = None
    invalid_share: float | None = None
    solved: int | None = None
    broken: int | None = None
    method: str = ""
    smallest_effect: float | None = None
    """The smallest value (absolute bounds) or difference (paired bounds) that could have been told from the bound."""


@dataclass(slots=True)
class Examined:
    """A row with what its interval needs; `row` alone is recorded."""

    row: Row
    values: Values | None = None
    paired: Paired | None = None
    changed: tuple[list[str], list[str]] | None = field(default=None)

    @property
    def tested(self) -> bool:
        """Return whether the row has p-values."""
        return self.row.p is not None


def bound_of(requirement: Requirement) -> tuple[Bound, float]:
    """Return the one bound that a requirement gives."""
    for kind in ("at_least", "at_most", "no_worse_by", "better_by"):
        value = getattr(requirement, kind)
        if value is not None:
            return kind, float(value)
    raise AssertionError("a requirement has exactly one bound")


def needs_baseline(requirement: Requirement) -> bool:
    """Return whether the requirement compares with a baseline."""
    return bound_of(requirement)[0] in ("no_worse_by", "better_by")


def examine(
    requirement: Requirement,
    candidate: Evaluated | Unusable,
    baseline: Evaluated | Unusable | None,
    *,
    max_invalid: float,
    choices: int = 1,
) -> Examined:
    """Return the row with unadjusted p-values; `baseline` None means that there is none yet.

    `choices` is the number of candidates among which this one was selected on the same set: p-values are multiplied
    by it (Bonferroni), since the best of several looks better than it is.
    """
    kind, bound = bound_of(requirement)
    row = Row(requirement.metric, requirement.set, kind, bound)
    examined = Examined(row)
    if needs_baseline(requirement) and baseline is None:
        row.answer, row.sentence = "not_applicable", "there is no baseline yet, so this is not asked"
        return examined
    if isinstance(candidate, Unusable):
        row.sentence = f"the candidate's evidence cannot be used: {candidate.reason}"
        return examined
    if requirement.metric == "regressed_cases":
        return _count_cases(examined, candidate, baseline)
    if needs_baseline(requirement):
        assert baseline is not None
        _test_paired(examined, requirement, candidate, baseline, max_invalid)
    else:
        _test_absolute(examined, requirement, candidate, max_invalid)
    if examined.tested and choices > 1:
        row.p, row.p_fail = min(1.0, choices * (row.p or 0.0)), min(1.0, choices * (row.p_fail or 0.0))
        row.method += f", p times {choices} for the choice among {choices} candidates"
    return examined


def _refused(row: Row, values: Values, max_invalid: float, whose: str) -> bool:
    """Say so, and return True, where the evidence is too thin to be used."""
    row.invalid_share = max(row.invalid_share or 0.0, values.invalid_share)
    if values.invalid_share > max_invalid:
        row.sentence = f"{values.invalid_share:.1%} of the {whose}'s tries have no verdict; at most {max_invalid:.1%} may have none"
        return True
    if not values.by_problem:
        row.sentence = f"no problem of the {whose} has a value"
        return True
    return False


def _test_absolute(examined: Examined, requirement: Requirement, candidate: Evaluated, max_invalid: float) -> None:
    row = examined.row
    values = measure(candidate, requirement.metric)
    if _refused(row, values, max_invalid, "candidate"):
        return
    examined.values = values
    share, bound, n = values.scaled(values.mean), values.scaled(row.bound), values.size
    share = min(1.0, max(0.0, share))
    above, below = score_p(share, n, bound), score_p(1.0 - share, n, 1.0 - bound)
    row.p, row.p_fail = (above, below) if row.kind == "at_least" else (below, above)
    row.value, row.n, row.n_effective = values.mean, len(values.by_problem), n
    row.method = "Wilson score interval" + ("" if n == row.n else f" at {n:.0f} effective observations")


def _comparable(candidate: Evaluated, baseline: Evaluated, metric: str) -> str | None:
    """Return why two evaluations must not be paired, or None."""
    if candidate.problems.keys() != baseline.problems.keys():
        differ = len(candidate.problems.keys() ^ baseline.problems.keys())
        return f"candidate and baseline were asked different problems ({differ} differ)"
    if metric != "success_greedy" and candidate.temperature != baseline.temperature:
        return f"they were sampled at different temperatures ({candidate.temperature:g} and {baseline.temperature:g})"
    return None


def _test_paired(
    examined: Examined,
    requirement: Requirement,
    candidate: Evaluated,
    baseline: Evaluated | Unusable,
    max_invalid: float,
) -> None:
    row = examined.row
    if isinstance(baseline, Unusable):
        row.sentence = f"the baseline's evidence cannot be used: {baseline.reason}"
        return
    reason = _comparable(candidate, baseline, requirement.metric)
    if reason:
        row.sentence = reason
        return
    new, old = measure(candidate, requirement.metric), measure(baseline, requirement.metric)
    if _refused(row, new, max_invalid, "candidate") or _refused(row, old, max_invalid, "baseline"):
        return
    found = compare_paired(new, old, requirement.metric)
    if found is None:
        row.sentence = "no problem has a verdict on both sides"
        return
    examined.values, examined.paired, examined.changed = new, found, (found.solved, found.broken)
    margin = min(0.999999, row.bound / found.width)
    better, worse = found.counts.against_better(), found.counts.against_worse()
    if row.kind == "no_worse_by":
        row.p = difference_p(*better, -margin)
        row.p_fail = mcnemar_exact(worse[0], worse[1], "worse")
    else:
        row.p = superiority_p(*better, margin)
        row.p_fail = difference_p(worse[1], worse[0], worse[2], -margin)
    row.value, row.baseline, row.effect = new.mean, old.mean, found.effect
    row.n, row.n_effective = found.compared, found.counts.n
    row.solved, row.broken = len(found.solved), len(found.broken)
    row.method = "exact McNemar test" if row.kind == "better_by" and margin == 0.0 else "exact paired test"
    if row.n_effective != row.n:
        row.method += f" at {found.counts.n:.0f} effective pairs"


def _count_cases(examined: Examined, candidate: Evaluated, baseline: Evaluated | Unusable | None) -> Examined:
    """A pool of single fixed cases is judged by count: how many of them fail now."""
    row = examined.row
    row.method = "count of cases that fail (greedy where asked)"
    if row.kind != "at_most":
        row.sentence = "regressed_cases takes at_most only"
        return examined
    if not candidate.problems:
        row.answer, row.sentence = "not_applicable", "this set never held a case"
        return examined
    if isinstance(baseline, Unusable):
        row.sentence = f"the baseline's evidence cannot be used: {baseline.reason}"
        return examined
    broken, unknown, still_open = [], [], 0
    for case in candidate.problems.values():
        passed = _passes(case.greedy, case.greedy_asked, case.successes, case.valid)
        before = baseline.problems.get(case.id) if baseline is not None else None
        if before is not None and _passes(before.greedy, before.greedy_asked, before.successes, before.valid) is False:
            still_open += passed is not True
        elif passed is None:
            unknown.append(case.id)
        elif not passed:
            broken.append(case.id)
    row.value, row.n, row.broken = float(len(broken)), len(candidate.problems), len(broken)
    examined.changed = ([], broken)
    if len(broken) > row.bound:
        row.answer = "fail"
    elif len(broken) + len(unknown) <= row.bound:
        row.answer = "pass"
    row.sentence = f"{len(broken)} of {row.n} cases fail, at most {row.bound:g} may"
    row.sentence += f"; {len(unknown)} have no verdict" if unknown else ""
    row.sentence += f"; {still_open} also failed before and do not count" if still_open else ""
    return examined


def _passes(greedy: bool | None, asked: bool, successes: int, valid: int) -> bool | None:  # noqa: FBT001
    if asked:
        return greedy
    return successes == valid if valid else None


def finish(examined: Examined, level: float, fail_level: float) -> None:
    """Fill interval, smallest effect and sentence from the levels that this row is tested at in Holm's order."""
    row = examined.row
    if examined.paired is not None:
        _finish_paired(row, examined.paired, level, fail_level)
    elif examined.values is not None and row.p is not None:
        _finish_absolute(row, examined.values, level, fail_level)


def _finish_absolute(row: Row, values: Values, level: float, fail_level: float) -> None:
    n, share = values.size, min(1.0, max(0.0, values.scaled(values.mean)))
    width = values.high - values.low
    tight, loose = wilson(share * n, n, 1.0 - 2.0 * level), wilson(share * n, n, 1.0 - 2.0 * fail_level)
    ends = (tight.low, loose.high) if row.kind == "at_least" else (loose.low, tight.high)
    row.interval = (values.low + width * ends[0], values.low + width * ends[1])
    bound, whole = values.scaled(row.bound), max(1, round(n))
    if row.kind == "at_least":
        needed = successes_needed(whole, bound, level)
        row.smallest_effect = None if needed is None else values.low + width * needed / whole
    else:
        needed = successes_needed(whole, 1.0 - bound, level)
        row.smallest_effect = None if needed is None else values.high - width * needed / whole
    end, name = (row.interval[0], "lower") if row.kind == "at_least" else (row.interval[1], "upper")
    other, other_name = (row.interval[1], "upper") if row.kind == "at_least" else (row.interval[0], "lower")
    word = "at least" if row.kind == "at_least" else "at most"
    stem = f"{row.metric} on {row.set} is {row.value:.4g} over {row.n} problems; {word} {row.bound:g} is asked"
    if row.answer == "pass":
        row.sentence = f"{stem} and the {name} bound {end:.4f} keeps it"
    elif row.answer == "fail":
        row.sentence = f"{stem} and even the {other_name} bound {other:.4f} misses it"
    else:
        reach = "no value can show it" if row.smallest_effect is None else f"{row.smallest_effect:.4f} would show it"
        row.sentence = f"{stem}; the {name} bound {end:.4f} does not show it ({reach} with {row.n} problems)"
        more = problems_needed(bound if row.kind == "at_least" else 1.0 - bound, level)
        if row.smallest_effect is None and more is not None:
            row.sentence += f"; at least {more} problems are needed"


def _finish_paired(row: Row, paired: Paired, level: float, fail_level: float) -> None:
    low = lower_bound(*paired.counts.against_better(), level)
    high = upper_bound(*paired.counts.against_worse(), fail_level)
    row.interval = (paired.width * low, paired.width * high)
    discordant = max(paired.discordant, 1.0 / paired.counts.n)
    smallest = detectable_difference(round(paired.counts.n), min(1.0, discordant), level)
    row.smallest_effect = None if smallest is None else paired.width * smallest
    seen = "no difference" if smallest is None else f"a difference of {paired.width * smallest:.3f}"
    word = "no worse by" if row.kind == "no_worse_by" else "better by more than"
    stem = (
        f"{row.metric} on {row.set}: {row.value:.4g} against {row.baseline:.4g}, effect {row.effect:+.4f} "
        f"[{row.interval[0]:+.4f}, {row.interval[1]:+.4f}] over {row.n} paired problems ({row.solved} better, "
        f"{row.broken} worse); {word} {row.bound:g}"
    )
    if row.answer == "pass":
        row.sentence = f"{stem} is shown (p = {row.p:.3g})"
        if row.kind == "no_worse_by" and row.interval[1] < 0:
            row.sentence += "; a small loss within the margin is real"
    elif row.answer == "fail":
        what = "a regression is shown" if row.kind == "no_worse_by" else "it is shown not to be"
        row.sentence = f"{stem}: {what} (p = {row.p_fail:.3g})"
    else:
        row.sentence = f"{stem} is not decided (p = {row.p:.3g}); these data see {seen} with 80% power"
        margin = row.bound / paired.width
        if row.kind == "no_worse_by" and 0 < margin < 1 and (needed := concordant_needed(margin, level)) > row.n:
            row.sentence += f"; even without one broken problem {needed} pairs are needed"
