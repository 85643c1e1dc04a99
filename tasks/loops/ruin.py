"""What a learning rate that ruins the policy leaves behind in a policy gradient, where everything stays finite.

The last update is seen on its own rollouts: the tokens that it was to make likelier must not cost more than a guess would
(`divergence.Guard`). Earlier ones are seen in the success of the rollouts after them: it has fallen to nothing where, from
some step on, it is less than `NOTHING` of what it was before. Whether that is chance is asked of problems, not of rollouts:
how likely is it that so few are solved (by any of their rollouts) from there on, were the order of all random? That chance
is multiplied by the number of steps that were tried (Bonferroni).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from specs.errors import TrainingError
from specs.records import Trajectory
from tasks.learning.learner import Learner, StepReport
from tasks.learning.rows import TrainingRow
from tasks.loops.divergence import Guard
from tasks.loops.groups import reward_of
from tasks.statistics.distributions import hypergeometric_at_most

NOTHING = 0.1
SURE, LIKELY = 0.005, 0.05
"""Chance up to which the stage stops, and up to which a person is told."""
_PLACES = 20
"""About how many steps are tried at most."""


def check_last_update(learner: Learner, rows: Sequence[TrainingRow], steps: int) -> None:
    """Raise TrainingError where the last update unlearnt what it was to make likelier. `rows`: fresh, as they trained."""
    wanted = [(row, mask) for row in rows if any(mask := _wanted(row))]
    if not wanted:
        return
    found = learner.logprobs([row for row, _ in wanted])
    before = fmean(-p for row, mask in wanted for p, m in zip(row.sampler_logprobs or [], mask, strict=True) if m)
    after = fmean(-p for (_, mask), own in zip(wanted, found, strict=True) for p, m in zip(own, mask, strict=True) if m)
    guard = Guard(learner.chance, learner.optimizer.learning_rate, steps)
    guard.check_last([before], [], StepReport(updated=True, cost=after))


def _wanted(row: TrainingRow) -> list[bool]:
    advantages = row.advantages or [row.advantage] * len(row.ids)
    return [m and a > 0 for m, a in zip(row.mask, advantages, strict=True)]


def solved(trajectories: Iterable[Trajectory]) -> list[float]:
    """Return the share of successes of each problem that has a valid rollout."""
    found: dict[str, list[bool]] = {}
    for one in trajectories:
        if one.success is not None and reward_of(one) is not None:
            found.setdefault(one.group, []).append(one.success)
    return [fmean(own) for own in found.values()]


@dataclass(frozen=True, slots=True)
class Fall:
    """How success has fallen to nothing. Pairs are of the steps before and of those since."""

    step: int
    success: tuple[float, float]
    reward: tuple[float, float]
    solved: tuple[str, str]
    chance: float

    def __str__(self) -> str:
        return (
            f"success has fallen to nothing after updates: {self.success[0]:.2f} before step {self.step} ({self.solved[0]} "
            f"problems solved), {self.success[1]:.3f} since ({self.solved[1]}); reward {self.reward[0]:.2f}, then "
            f"{self.reward[1]:.2f}"
        )


def fall(shares: Sequence[Sequence[float]], curve: Sequence[Mapping[str, float]]) -> Fall | None:
    """Return how success has fallen to nothing, where that is hardly chance. `shares`: of `solved`, by step as `curve`."""
    first = next((k + 1 for k, line in enumerate(curve) if line.get("updated")), len(curve))
    places = range(len(curve) - 1, first - 1, -max(1, len(curve) // _PLACES))  # the last one is always tried
    found: list[Fall] = []
    for at in places:
        before, after = ([share for step in part for share in step] for part in (shares[:at], shares[at:]))
        if not (before and after) or fmean(after) >= NOTHING * fmean(before):
            continue
        ever, now = (sum(share > 0 for share in part) for part in (before, after))
        chance = len(places) * hypergeometric_at_most(now, len(after), ever + now, len(before) + len(after))
        old, new = (fmean(line["reward_mean"] for line in part) for part in (curve[:at], curve[at:]))
        counts = (f"{ever} of {len(before)}", f"{now} of {len(after)}")
        found.append(Fall(at, (fmean(before), fmean(after)), (old, new), counts, chance))
    worst = min(found, key=lambda f: f.chance, default=None)
    return worst if worst is not None and worst.chance <= LIKELY else None


def check_fall(found: Fall | None, learning_rate: float, *, chosen: bool) -> list[str]:
    """Raise TrainingError where a stage has ruined its policy; return a note where it may have. `chosen`: the problems are."""
    if found is None:
        return []
    remedy = f"lower optimizer.learning_rate (now {learning_rate:g})"
    if found.reward[1] > found.reward[0]:
        return [f"{found}: the reward pays for something else than success; see tutelage diagnose"]
    if chosen:
        return [f"{found}: either the curriculum draws harder problems, or {remedy}"]
    if found.chance > SURE:
        return [
            f"{found}: the problems drawn give that by chance in one stage of {1 / found.chance:.0f}; else {remedy}"
        ]
    raise TrainingError(f"{found}. The policy was not handed on: {remedy} and run it again")
