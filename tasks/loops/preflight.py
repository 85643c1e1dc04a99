"""Before a policy-gradient stage: can these rewards teach this policy anything?"""

from collections.abc import Sequence
from math import comb
from statistics import fmean, pstdev
from typing import Any

from specs.algorithms import PolicyGradientAlgorithm
from specs.records import Trajectory
from tasks.episodes.shards import tool_errors
from tasks.loops.groups import group_stats
from tasks.statistics.pass_metrics import samples_to_success

REVIEW = 50
"""Trajectories with the best and with the worst reward that a person is shown."""
GROUP_SIZES = (4, 8, 16, 32)


def measure(trajectories: Sequence[Trajectory], spec: PolicyGradientAlgorithm) -> dict[str, Any]:
    """Return the preflight's figures: reward, success, tool success, length, advantages, groups that can teach.

    Trajectories without a verdict are counted under `invalid` and take no part in the rest.
    """
    valid = [t for t in trajectories if t.success is not None and t.reward is not None]
    rewards = [t.reward or 0.0 for t in valid] or [0.0]
    stats = group_stats(trajectories, spec)
    by_problem: dict[str, list[bool]] = {}
    for t in valid:
        by_problem.setdefault(t.problem_id, []).append(bool(t.success))
    calls = sum(len(t.turns) for t in valid)
    counts = [(sum(s), len(s)) for s in by_problem.values()]
    return {
        "rollouts": len(trajectories),
        "problems": len(by_problem),
        "invalid": len(trajectories) - len(valid),
        "success": _mean([bool(t.success) for t in valid]),
        "positive_problem_rate": _mean([c > 0 for c, _ in counts]),
        "samples_to_success": _mean([samples_to_success(n, c) for c, n in counts]),
        "mixed_group_rate": stats.mixed / max(1, stats.counts.groups),
        "reward": {
            "mean": fmean(rewards),
            "std": pstdev(rewards),
            "min": min(rewards),
            "max": max(rewards),
            "positive_rate": _mean([r > 0 for r in rewards]),
            "zero_rate": _mean([r == 0 for r in rewards]),
        },
        "tool_success": 1 - sum(tool_errors(t) for t in valid) / calls if calls else None,
        "truncated": _mean([t.status == "truncated" for t in trajectories]),
        "policy_tokens": _mean([t.policy_tokens for t in valid]),
        "advantage_std": pstdev(stats.advantages.values()) if stats.advantages else 0.0,
        "zero_variance_groups": stats.counts.flat,
        "expected_mixed": {str(g): expected_mixed(counts, g) for g in GROUP_SIZES},
    }


def expected_mixed(counts: Sequence[tuple[int, int]], group_size: int) -> float:
    """Return the expected share of groups of a size that hold both a success and a failure.

    `counts` are (successes, samples) by problem. Exact for sizes up to the samples drawn (hypergeometric); beyond
    that from the observed rate, which says 0 for a problem whose samples all agree and so is a lower guess.
    """
    shares: list[float] = []
    for successes, samples in counts:
        if group_size <= samples:
            ways = comb(samples, group_size)
            alike = comb(successes, group_size) + comb(samples - successes, group_size)
            shares.append(1 - alike / ways)
        else:
            p = successes / samples
            shares.append(1 - p**group_size - (1 - p) ** group_size)
    return _mean(shares)


def first_success(figures: dict[str, Any]) -> list[str]:
    """Return a sentence with the samples that the first success of a problem takes."""
    if not figures["problems"]:
        return []
    none = 1 - figures["positive_problem_rate"]
    never = f" ({none:.0%} of the problems had none: it counts as the one after their last)" if none else ""
    return [f"the first success of a problem takes {figures['samples_to_success']:.1f} samples on average{never}"]


def review_sample(trajectories: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """Return the best- and the worst-rewarded trajectories; none stands in both."""
    ranked = sorted((t for t in trajectories if t.reward is not None), key=lambda t: (-(t.reward or 0.0), t.id))
    half = min(REVIEW, len(ranked) // 2)
    return ranked[:half], ranked[len(ranked) - half :][::-1]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
