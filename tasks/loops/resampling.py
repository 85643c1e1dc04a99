"""The rollouts of one step: one round of problems, and further rounds where groups that teach nothing are replaced."""

from collections.abc import Callable
from dataclasses import dataclass, field

from specs.errors import TrainingError
from specs.policy_gradient import DAPO, PolicyGradientAlgorithm, Resample
from specs.records import Problem, Trajectory
from tasks.episodes.seeds import derive
from tasks.loops.collect import Arena, Collected, Draw, check_invalid, rollouts
from tasks.loops.groups import GroupStats, group_stats


@dataclass(slots=True)
class StepRollouts:
    """What was drawn for a step, all of it, and how."""

    collected: Collected
    stats: GroupStats
    rounds: list[int] = field(default_factory=list)
    """Problems asked for in each round."""
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
    rounds: list[int] = []
    wanted, stats = spec.problems_per_step, group_stats([], spec, running_mean)
    while len(rounds) < most and stats.teaching < wanted:
        missing, number = wanted - stats.teaching, len(rounds)
        name = f"step{step}" if number == 0 else f"step{step}.{number}"
        parts = ("step", step) if number == 0 else ("step", step, "round", number)
        asked = Draw(spec.group_size, spec.temperature, derive(seed, *parts), name)
        found += rollouts(arena, draw(missing), asked, stop=stop)
        rounds.append(missing)
        stats = group_stats(found, spec, running_mean)
    made = StepRollouts(check_invalid(found, arena.reward), stats, rounds)
    if resample is not None:
        made.short = wanted - stats.teaching
        _when_short(made, resample, wanted, step)
    return made


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
