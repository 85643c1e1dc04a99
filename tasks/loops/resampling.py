"""The rollouts of one step: one round of problems, and further rounds where groups that teach nothing are replaced."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from specs.algorithms import PolicyGradientAlgorithm
from specs.errors import TrainingError
from specs.group_relative import DAPO, Resample
from specs.records import Problem, Trajectory
from tasks.episodes.seeds import derive
from tasks.loops.collect import Arena, Collected, Draw, check_invalid, rollouts
from tasks.loops.groups import GroupStats, group_stats, reward_of


@dataclass(slots=True)
class StepRollouts:
    """What was drawn for a step, all of it, and how."""

    collected: Collected
    stats: GroupStats
    rounds: list[int] = field(default_factory=list)
    """Problems asked for in each round."""
    beside: list[Trajectory] = field(default_factory=list[Trajectory])
    """Rollouts of another policy in the same step: of a frozen self that teaches."""
    short: int = 0
    """Groups that were wanted and not found; 0 without dynamic sampling."""

    def figures(self) -> dict[str, float]:
        """Return what dynamic sampling cost, where there is more than one round or a group is missing."""
        if len(self.rounds) < 2 and not self.short:
            return {}
        return {
            "sampling_rounds": float(len(self.rounds)),
            "discarded_groups": float(self.stats.silent),
            "short_groups": float(self.short),
        }


def draw_step(
    arena: Arena,
    spec: PolicyGradientAlgorithm,
    draw: Callable[[int], list[Problem]],
    *,
    seed: int,
    step: int,
    running_mean: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> StepRollouts:
    """Return the judged rollouts of a step. Each further round has as many problems as groups are missing.

    Raises TrainingError where groups are missing after the last round and `resample.when_short` is stop.
    """
    resample = spec.resample if isinstance(spec, DAPO) else None
    most = resample.max_rounds if resample is not None else 1
    found: list[Trajectory] = []
    chosen: list[Trajectory] = []
    rounds: list[int] = []
    wanted, stats = spec.problems_per_step, group_stats([], spec, running_mean)
    while len(rounds) < most and stats.teaching < wanted:
        missing, number = wanted - stats.teaching, len(rounds)
        name = f"step{step}" if number == 0 else f"step{step}.{number}"
        parts = ("step", step) if number == 0 else ("step", step, "round", number)
        asked = Draw(spec.group_size * spec.best_of, spec.temperature, derive(seed, *parts), name)
        drawn = rollouts(arena, draw(missing), asked, stop=stop)
        found += drawn
        chosen += best_of(drawn, spec.best_of)
        rounds.append(missing)
        stats = group_stats(chosen, spec, running_mean)
    made = StepRollouts(check_invalid(found, arena.reward), stats, rounds)
    if resample is not None:
        made.short = wanted - stats.teaching
        _when_short(made, resample, wanted, step)
    return made


def best_of(drawn: list[Trajectory], count: int) -> list[Trajectory]:
    """Return the best by reward of each `count` trajectories of a group in a row, tagged as chosen by a search.

    The first of equals; one without a reward is never preferred. With a count of 1 all of them, as they are.
    """
    if count == 1:
        return drawn
    chosen: list[Trajectory] = []
    for at in range(0, len(drawn), count):
        block = drawn[at : at + count]
        rewards = [-math.inf if (r := reward_of(t)) is None else r for t in block]
        best = block[rewards.index(max(rewards))]
        best.tags.append(f"best_of:{count}")
        chosen.append(best)
    return chosen


def _when_short(made: StepRollouts, resample: Resample, wanted: int, step: int) -> None:
    if made.short == 0 or resample.when_short == "train":
        return
    raise TrainingError(
        f"step {step}: {made.stats.teaching} of {wanted} groups vary after {len(made.rounds)} rounds "
        f"({len(made.collected.trajectories)} rollouts; solved: {_solved(made.collected.trajectories)}), and "
        "resample.when_short is stop. Ways out: problems of other difficulty, more resample.max_rounds, a larger "
        "group_size, or when_short: train"
    )


def _solved(trajectories: list[Trajectory]) -> str:
    """Return the success rate of each environment and problem type, in words."""
    by_type: dict[str, list[bool]] = {}
    for t in trajectories:
        if t.success is not None:
            by_type.setdefault(f"{t.environment}.{t.problem_type}", []).append(t.success)
    return ", ".join(f"{name} {sum(s) / len(s):.0%}" for name, s in sorted(by_type.items())) or "none judged"
