"""What a step's rollouts say by group: advantages, which groups can teach, and the figures a person watches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

from specs.records import Trajectory
from tasks.episodes.driver import identical_completions
from tasks.learning.algorithms.grpo import FLAT, GroupCounts, advantages


@dataclass(slots=True)
class GroupStats:
    """A step's groups. `advantages` holds only trajectories of groups that vary."""

    advantages: dict[str, float]
    counts: GroupCounts
    mixed: int
    """Groups with both a success and a failure."""
    flat_right: int
    """Groups without variance in which all succeeded."""
    flat_wrong: int
    """Groups without variance in which none did."""


def group_stats(trajectories: Sequence[Trajectory], scale: Literal["group_std", "none"]) -> GroupStats:
    """Return the groups of a step; trajectories without a reward take no part."""
    valid = [None if t.status == "infrastructure" else t.reward for t in trajectories]
    values, counts = advantages(valid, [t.group for t in trajectories], scale)
    stats = GroupStats({}, counts, 0, 0, 0)
    members: dict[str, list[int]] = {}
    for i, t in enumerate(trajectories):
        members.setdefault(t.group, []).append(i)
    for indices in members.values():
        given = [i for i in indices if values[i] is not None]
        if len(given) < 2:
            continue
        successes = sum(bool(trajectories[i].success) for i in given)
        stats.mixed += 0 < successes < len(given)
        rewards = [valid[i] or 0.0 for i in given]
        if max(rewards) - min(rewards) < FLAT or all(values[i] == 0.0 for i in given):
            stats.flat_right += successes == len(given)
            stats.flat_wrong += successes == 0
            continue
        stats.advantages |= {trajectories[i].id: values[i] or 0.0 for i in given}
    return stats


def rollout_figures(trajectories: Sequence[Trajectory], stats: GroupStats) -> dict[str, float]:
    """Return the figures of a step's rollouts, success left of reward; shares are of trajectories or of groups.

    `repeated` trajectories have, token for token, what another of their group has; in an `identical` group all do.
    """
    valid = [t for t in trajectories if t.success is not None and t.reward is not None]
    rewards = [t.reward or 0.0 for t in valid]
    groups = max(1, stats.counts.groups)
    count = max(1, len(trajectories))
    run = [t for t in trajectories if t.status != "infrastructure"]
    repeated, sizes = identical_completions(run), Counter(t.group for t in run)
    alike = sum(sizes[g] > 1 and n == sizes[g] - 1 for g, n in repeated.items())
    ended = [t.policy_tokens for t in trajectories if t.status == "finished"]
    return {
        "success": fmean(bool(t.success) for t in valid) if valid else 0.0,
        "reward_mean": fmean(rewards) if rewards else 0.0,
        "reward_std": pstdev(rewards) if rewards else 0.0,
        "mixed_groups": stats.mixed / groups,
        "zero_variance_groups": stats.counts.flat / groups,
        "zero_variance_right": stats.flat_right / groups,
        "zero_variance_wrong": stats.flat_wrong / groups,
        "too_few_valid_groups": stats.counts.too_few / groups,
        "invalid": 1 - len(valid) / count,
        "truncated": sum(t.status == "truncated" for t in trajectories) / count,
        "repeated": sum(repeated.values()) / count,
        "identical_groups": alike / groups,
        "policy_tokens": fmean(t.policy_tokens for t in trajectories) if trajectories else 0.0,
        "policy_tokens_finished": fmean(ended) if ended else 0.0,
        "turns": fmean(len(t.turns) for t in trajectories) if trajectories else 0.0,
    }
