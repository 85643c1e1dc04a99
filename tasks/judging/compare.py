"""Two evaluations of the same set, paired by problem. For looking: Tango's score intervals; what decides is a gate."""

from typing import Any, get_args

from specs.gates import Metric
from tasks.judging.measures import Values, compare_paired, measure
from tasks.judging.results import Evaluated
from tasks.statistics.intervals import bounded_interval
from tasks.statistics.paired import (
    LARGE,
    Pairs,
    difference_se,
    mcnemar_chi_square,
    mcnemar_exact,
    mcnemar_mid_p,
    tango_interval,
)

METRICS: tuple[Metric, ...] = tuple(m for m in get_args(Metric) if m != "regressed_cases")
LISTED = 20


def two_sided_p(counts: Pairs) -> float:
    """Return McNemar's exact two-sided p-value; effective counts are rounded against either claim."""
    solved, broken, _ = counts.against_better()
    better = mcnemar_exact(solved, broken, "better")
    solved, broken, _ = counts.against_worse()
    return min(1.0, 2.0 * min(better, mcnemar_exact(solved, broken, "worse")))


def _mcnemar(counts: Pairs) -> tuple[float, float | None]:
    """Return McNemar's mid-p value, and his chi-square where enough pairs differ; rounded as above, against a difference."""
    rounded = [(solved, broken) for solved, broken, _ in (counts.against_better(), counts.against_worse())]
    enough = min(map(sum, rounded)) >= LARGE
    return max(mcnemar_mid_p(*r) for r in rounded), min(mcnemar_chi_square(*r) for r in rounded) if enough else None


def _side(values: Values, confidence: float) -> dict[str, Any]:
    interval = bounded_interval(list(values.by_problem.values()), values.most, confidence)
    width = values.high - values.low
    return {
        "value": values.mean,
        "low": values.low + width * interval.low,
        "high": values.low + width * interval.high,
        "problems": len(values.by_problem),
        "invalid_share": values.invalid_share,
    }


def _metric(first: Evaluated, second: Evaluated, metric: Metric, confidence: float) -> dict[str, Any] | None:
    old, new = measure(first, metric), measure(second, metric)
    found = compare_paired(new, old, metric) if old.by_problem and new.by_problem else None
    if found is None:
        return None
    counts = found.counts
    score = tango_interval(counts.solved, counts.broken, counts.n, confidence)
    mid_p, chi_square = _mcnemar(counts)
    return {
        "metric": metric,
        "a": _side(old, confidence),
        "b": _side(new, confidence),
        "effect": found.effect,
        "low": found.width * score.low,
        "high": found.width * score.high,
        "se": found.width * difference_se(counts.solved, counts.broken, counts.n),
        "p": two_sided_p(counts),
        "mid_p": mid_p,
        "chi_square": chi_square,
        "pairs": found.compared,
        "better": len(found.solved),
        "worse": len(found.broken),
        "newly_solved": found.solved[:LISTED],
        "newly_broken": found.broken[:LISTED],
    }


def _types(first: Evaluated, second: Evaluated) -> dict[str, dict[str, Any]]:
    types: dict[str, dict[str, Any]] = {}
    for key, a in first.problems.items():
        b = second.problems.get(key)
        if b is None or not a.valid or not b.valid:
            continue
        row = types.setdefault(a.type, {"problems": 0, "a": 0.0, "b": 0.0})
        row["problems"] += 1
        row["a"] += a.successes / a.valid
        row["b"] += b.successes / b.valid
    return {
        k: {"problems": r["problems"], "a": r["a"] / r["problems"], "b": r["b"] / r["problems"]}
        for k, r in sorted(types.items())
    }


def compare(first: Evaluated, second: Evaluated, confidence: float = 0.95) -> dict[str, Any]:
    """Return the comparison of `second` (b) with `first` (a): effects are b - a, better is positive.

    Problems that only one side was asked are left out and counted in `notes`.
    """
    notes: list[str] = []
    only_a, only_b = first.problems.keys() - second.problems.keys(), second.problems.keys() - first.problems.keys()
    if only_a or only_b:
        notes.append(f"left out: {len(only_a)} problems that only a was asked, {len(only_b)} that only b was asked")
    if first.temperature != second.temperature:
        notes.append(f"sampled at different temperatures: {first.temperature:g} and {second.temperature:g}")
    if first.samples != second.samples:
        notes.append(f"different samples per problem: {first.samples} and {second.samples}")
    if first.policy_digest == second.policy_digest:
        notes.append("both are the same policy; a difference is chance or a difference of settings")
    rows = [r for m in METRICS if (r := _metric(first, second, m, confidence)) is not None]
    texts = {k: r.text for k, r in second.problems.items() if r.text}
    named = {k for r in rows if r["metric"] == "success" for k in (*r["newly_solved"], *r["newly_broken"])}
    return {
        "set": second.set,
        "a": {"policy_digest": first.policy_digest, "problems": len(first.problems)},
        "b": {"policy_digest": second.policy_digest, "problems": len(second.problems)},
        "confidence": confidence,
        "metrics": rows,
        "types": _types(first, second),
        "texts": {k: texts[k] for k in sorted(named) if k in texts},
        "notes": notes,
    }


def text(comparison: dict[str, Any]) -> str:
    """Return a comparison as a plain text table with the problems that changed."""
    head = ("metric", "a", "b", "effect", "interval", "se", "p", "mid-p", "chi2", "better", "worse", "pairs")
    lines: list[tuple[str, ...]] = [head]
    lines += [
        (
            r["metric"], f"{r['a']['value']:.4f}", f"{r['b']['value']:.4f}", f"{r['effect']:+.4f}",
            f"[{r['low']:+.4f}, {r['high']:+.4f}]", f"{r['se']:.4f}", f"{r['p']:.3g}", f"{r['mid_p']:.3g}",
            "" if r["chi_square"] is None else f"{r['chi_square']:.2f}", str(r["better"]), str(r["worse"]), str(r["pairs"]),
        )
        for r in comparison["metrics"]
    ]  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    parts = [f"{comparison['set']}: b against a, paired by problem ({comparison['confidence']:.0%} intervals)"]
    parts += ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    for kind, row in comparison["types"].items():
        parts.append(f"  {kind}: {row['a']:.3f} -> {row['b']:.3f} ({row['problems']} problems)")
    success = next((r for r in comparison["metrics"] if r["metric"] == "success"), None)
    for name in ("newly_solved", "newly_broken"):
        for problem in (success or {}).get(name, ()):
            asked = " ".join(comparison["texts"].get(problem, "").split())[:100]
            parts.append(f"  {name.replace('_', ' ')}: {problem}  {asked}".rstrip())
    parts += [f"note: {n}" for n in comparison["notes"]]
    return "\n".join(parts) + "\n"
