"""What a step's rollouts say by group: advantages, which groups can teach, and the figures a person watches."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Literal

from specs.algorithms import PolicyGradientAlgorithm
from specs.group_relative import DAPO, REINFORCE
from specs.records import Trajectory
from specs.turn_credit import TurnCredit
from specs.value_based import ValueBased
from tasks.episodes.driver import identical_completions
from tasks.learning.algorithms import policy_gradient_for, turn_advantages_for
from tasks.learning.algorithms.dapo import penalty
from tasks.learning.algorithms.reinforce import next_mean
from tasks.learning.grouping import FLAT, GroupCounts, Rewarded, TurnValues, Walk, count_groups, outliers_cut, varies


@dataclass(slots=True)
class GroupStats:
    """A step's groups."""

    advantages: dict[str, float]
    """By trajectory, of the groups in which at least one advantage is not 0; where a critic judges, every reward."""
    counts: GroupCounts
    mixed: int
    """Groups with both a success and a failure."""
    flat_right: int
    """Groups without variance in which all succeeded."""
    flat_wrong: int
    """Groups without variance in which none did."""
    silent: int = 0
    """Groups in which every advantage is 0 or none was given; where turns have their own, those whose rewards are equal."""
    unmoved: list[str] = field(default_factory=list)
    """Judged trajectories of silent groups: their advantage is 0."""
    flat: bool = True
    """Nothing can be compared: no advantage is other than 0 or, where a critic judges, all rewards are the same."""
    turn_advantages: dict[str, list[float]] = field(default_factory=dict)
    """Of the same trajectories by turn, where the algorithm gives turns their own."""
    running_mean: float | None = None
    """Mean reward that the next step is compared with, where the algorithm keeps one."""

    @property
    def teaching(self) -> int:
        """Return how many groups have something to teach."""
        return self.counts.groups - self.silent


def group_stats(
    trajectories: Sequence[Trajectory], spec: PolicyGradientAlgorithm, running_mean: float | None = None
) -> GroupStats:
    """Return the groups of a step; trajectories without a reward take no part."""
    rewarded = Rewarded(
        [reward_of(t) for t in trajectories],
        [t.group for t in trajectories],
        [t.policy_tokens for t in trajectories],
        running_mean,
        [walk_of(t, spec.anchor) for t in trajectories] if isinstance(spec, TurnCredit) else (),
    )
    if spec.clip_rewards is not None:
        rewarded = outliers_cut(rewarded, spec.clip_rewards)
    values = policy_gradient_for(spec)[1](rewarded)
    stats = GroupStats({}, count_groups(rewarded), 0, 0, 0)
    by_turn = turn_advantages_for(spec)
    turns: TurnValues = [[v] if v is not None else None for v in values] if by_turn is None else by_turn(rewarded)
    if isinstance(spec, REINFORCE) and spec.baseline == "running_mean":
        stats.running_mean = next_mean(rewarded, spec)
    for given in rewarded.members().values():
        rewards = [rewarded.value(i) for i in given]
        alike = by_turn is not None and not varies(rewards)  # lengths alone tell turns apart
        if not (isinstance(spec, ValueBased) and given) and (
            alike or not any(v for i in given for v in turns[i] or [])
        ):
            stats.silent += 1
            stats.unmoved += [trajectories[i].id for i in given]
        else:
            stats.advantages |= {trajectories[i].id: values[i] or 0.0 for i in given}
            if by_turn is not None:
                stats.turn_advantages |= {trajectories[i].id: turns[i] or [] for i in given}
        if len(given) < 2:
            continue
        successes = sum(bool(trajectories[i].success) for i in given)
        stats.mixed += 0 < successes < len(given)
        if max(rewards) - min(rewards) < FLAT:
            stats.flat_right += successes == len(given)
            stats.flat_wrong += successes == 0
    rewards = [rewarded.value(i) for i in rewarded.given()]
    same = isinstance(spec, ValueBased) and max(rewards, default=0.0) - min(rewards, default=0.0) < FLAT
    stats.flat = same or not stats.advantages
    return stats


def reward_of(trajectory: Trajectory) -> float | None:
    """Return a trajectory's reward; None where there is none, it is no number, or its episode could not be run."""
    reward = trajectory.reward
    return None if trajectory.status == "infrastructure" or reward is None or math.isnan(reward) else reward


def walk_of(trajectory: Trajectory, anchor: Literal["observation", "history"]) -> Walk:
    """Return a trajectory as a walk; before the first turn all trajectories of a problem stand in the same state."""
    anchors: list[str] = []
    seen: list[str] = []
    for turn in trajectory.turns:
        anchors.append("\n".join(seen if anchor == "history" else seen[-1:]))
        called = None if turn.call is None else [turn.call.name, turn.call.arguments, turn.call.error]
        observed = None if turn.observation is None else turn.observation.data
        seen.append(json.dumps([called, observed], sort_keys=True, default=str))
    valid = [turn.call is None or turn.call.error is None for turn in trajectory.turns]
    return Walk(anchors, valid, bool(trajectory.success), [turn.reward for turn in trajectory.turns])


def overlong_figures(trajectories: Sequence[Trajectory], spec: PolicyGradientAlgorithm) -> dict[str, float]:
    """Return the mean penalty for length where one is declared; it stands beside the reward, not within it."""
    if not isinstance(spec, DAPO) or spec.overlong is None or not trajectories:
        return {}
    return {"overlong_penalty": fmean(penalty(t.policy_tokens, spec.overlong) for t in trajectories)}


def rollout_figures(trajectories: Sequence[Trajectory], stats: GroupStats) -> dict[str, float]:
    """Return the figures of a step's rollouts, success left of reward; shares are of trajectories or of groups.

    `repeated` trajectories have, token for token, what another of their group has; in an `identical` group all do.
    """
    valid = [t for t in trajectories if t.success is not None and reward_of(t) is not None]
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
