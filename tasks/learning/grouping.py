"""Rewards by group: what every group-relative advantage shares."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev, stdev

FLAT = 1e-6
"""Standard deviation of a group's rewards below which they count as equal."""

Rule = Callable[[list[float], list[int]], list[float]]
"""From a group's rewards and the policy tokens behind each to one advantage each."""
Values = list[float | None]
TurnValues = list[list[float] | None]
"""By trajectory, one number per turn; None where no reward was given."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A trajectory as a walk through states, one entry per turn; equal anchors are the same state."""

    anchors: Sequence[Hashable]
    """What the policy had before it when it took the turn."""
    valid: Sequence[bool]
    """Whether the turn's action could be carried out as written."""
    success: bool
    rewards: Sequence[float] = ()
    """What each turn earned by itself, as part of the trajectory's reward."""


@dataclass(frozen=True, slots=True)
class Rewarded:
    """The rewards of a step, one per trajectory; None or NaN where it could not be given."""

    rewards: Sequence[float | None]
    groups: Sequence[Hashable]
    tokens: Sequence[int] = ()
    """Policy tokens of each trajectory; needed by length-weighted baselines alone."""
    running_mean: float | None = None
    """Mean reward that earlier steps have left behind."""
    walks: Sequence[Walk] = ()
    """Needed by algorithms that give each turn an advantage of its own."""

    def given(self) -> list[int]:
        """Return the indices that have a reward."""
        return [i for i, r in enumerate(self.rewards) if r is not None and not math.isnan(r)]

    def value(self, i: int) -> float:
        """Return a reward that was given."""
        reward = self.rewards[i]
        assert reward is not None, "ask for given() rewards alone"
        return float(reward)

    def members(self) -> dict[Hashable, list[int]]:
        """Return the indices with a reward by group; a group that has none left has an empty list."""
        found: dict[Hashable, list[int]] = {group: [] for group in self.groups}
        for i in self.given():
            found[self.groups[i]].append(i)
        return found


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """How many groups there were, how many vary, are flat, or have fewer than two rewards; rewards not given."""

    groups: int
    varied: int
    flat: int
    too_few: int
    missing: int


def varies(rewards: Sequence[float]) -> bool:
    """Return whether there is anything to compare in these rewards: two at least, and not all the same."""
    return len(rewards) > 1 and stdev(rewards) >= FLAT


def count_groups(rewarded: Rewarded) -> GroupCounts:
    """Return how many groups can teach anything."""
    groups = [[rewarded.value(i) for i in indices] for indices in rewarded.members().values()]
    varied = sum(varies(g) for g in groups)
    too_few = sum(len(g) < 2 for g in groups)
    missing = len(rewarded.rewards) - len(rewarded.given())
    return GroupCounts(len(groups), varied, len(groups) - varied - too_few, too_few, missing)


def by_group(rewarded: Rewarded, rule: Rule) -> Values:
    """Return one advantage per reward by a rule within each group.

    A reward that was not given takes no part in its group's statistics and gets None. A group without variance gets
    0, and so does a group with a single reward: there is nothing to compare it with.
    """
    result = zeros(rewarded)
    for indices in rewarded.members().values():
        values = [rewarded.value(i) for i in indices]
        if not varies(values):
            continue
        tokens = [rewarded.tokens[i] for i in indices] if rewarded.tokens else []
        for i, advantage in zip(indices, rule(values, tokens), strict=True):
            result[i] = advantage
    return result


def outliers_cut(rewarded: Rewarded, most: float) -> Rewarded:
    """Return the rewards, each at most so many of its group's sample standard deviations from the group's mean.

    Both are of the rewards before the cut; a group without variance stays as it is.
    """
    rewards = list(rewarded.rewards)
    for indices in rewarded.members().values():
        values = [rewarded.value(i) for i in indices]
        if varies(values):
            mean, reach = fmean(values), most * stdev(values)
            for i, value in zip(indices, values, strict=True):
                rewards[i] = max(mean - reach, min(mean + reach, value))
    return replace(rewarded, rewards=rewards)


def visits(rewarded: Rewarded, indices: Sequence[int]) -> dict[Hashable, list[tuple[int, int]]]:
    """Return by anchor where trajectories of one group have met it: (trajectory, turn)."""
    found: dict[Hashable, list[tuple[int, int]]] = {}
    for i in indices:
        for k, anchor in enumerate(rewarded.walks[i].anchors):
            found.setdefault(anchor, []).append((i, k))
    return found


def normalised(values: list[float], floor: float | None) -> list[float]:
    """Return values less their mean, by (sample std + floor) where one is given; zeros where they do not vary."""
    if not varies(values):
        return [0.0] * len(values)
    mean = fmean(values)
    divisor = 1.0 if floor is None else stdev(values) + floor
    return [(v - mean) / divisor for v in values]


def by_turn(rewarded: Rewarded, episode: Values, step: dict[tuple[int, int], float], coef: float) -> TurnValues:
    """Return the episode's advantage plus `coef` times the turn's own."""
    return [
        None if a is None else [a + coef * step.get((i, k), 0.0) for k in range(len(rewarded.walks[i].anchors))]
        for i, a in enumerate(episode)
    ]


def as_given(rewarded: Rewarded) -> Values:
    """Return the rewards themselves, None where none was given."""
    result: Values = [None] * len(rewarded.rewards)
    for i in rewarded.given():
        result[i] = rewarded.value(i)
    return result


def zeros(rewarded: Rewarded) -> Values:
    """Return 0 for each reward that was given, None for the others."""
    result: Values = [None] * len(rewarded.rewards)
    for i in rewarded.given():
        result[i] = 0.0
    return result


def centred(rewards: list[float], tokens: list[int]) -> list[float]:
    """Return R - mean R."""
    mean = fmean(rewards)
    return [r - mean for r in rewards]


def scaled(rewards: list[float], floor: float, *, population: bool = False) -> list[float]:
    """Return (R - mean R) / (std R + floor), with the sample standard deviation unless `population`."""
    mean, spread = fmean(rewards), (pstdev(rewards) if population else stdev(rewards)) + floor
    return [(r - mean) / spread for r in rewards]
