"""The divergence guard of stages that fit rows: what runs away and stays finite ends the stage too.

Watched is the cost of a token that is to become likelier (of pairs, of the chosen side), in nats; of a reward model, its
loss. A stage has diverged where the median of its last steps (a tenth of all, `WINDOW` at least) is above that of a guess
(log V, of a reward model log 2) and more than `MARGIN` above the first step's; of pairs also where a rejected token costs
`FAR` more than in the first step. A stage that learns from nothing begins at log V and falls; one that rises to it has lost
all that its policy knew. The last update is seen on its own rows: they cost more than that, and `MARGIN` (`FAR`) more than
before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from specs.errors import TrainingError
from tasks.learning.learner import Chance, StepReport

WINDOW = 5
"""Least number of steps whose median counts, so that a bad batch, or a start from which a stage recovers, does not."""
MARGIN = 1.0
"""Nats above the first step."""
FAR = 20.0
"""Nats that a rejected token may lose on average; where it loses more no ratio is told apart (`importance_ratio`)."""
RISE, RISE_SHARE = 0.2, 0.5
"""Nats, and share of the first step's, by which a rise is worth a note."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What a stage is held against."""

    chance: Chance
    learning_rate: float
    """As declared; a schedule moves it."""
    steps: int

    def check(self, costs: Sequence[float], rejected: Sequence[float], step: int) -> None:
        """Raise TrainingError where the stage has diverged. `costs`: of its steps so far, each before its update."""
        now = self._recent(costs, step)
        if now is not None and now > max(self.chance.nats, costs[0] + MARGIN):
            raise TrainingError(
                f"step {step}: training has diverged: {self.chance.what} costs {now:.2f} nats (median of the last steps), "
                f"{costs[0]:.2f} in the first step and {self.chance.nats:.2f} by {self.chance.by}. {self._remedy}"
            )
        now = self._recent(rejected, step)
        if now is not None and now > rejected[0] + FAR:
            raise TrainingError(
                f"step {step}: training has diverged: a token of the rejected side costs {now:.1f} nats (median of the "
                f"last steps), {rejected[0]:.2f} in the first step, expected at most {FAR:g} more. {self._remedy}, or raise beta"
            )

    def check_last(self, costs: Sequence[float], rejected: Sequence[float], after: StepReport) -> None:
        """Raise TrainingError where the last update alone made the stage diverge; `after`: its rows, measured again."""
        if costs and after.cost is not None and after.cost > max(self.chance.nats, max(costs[0], costs[-1]) + MARGIN):
            raise TrainingError(
                f"step {self.steps}: training has diverged: {self.chance.what} costs {after.cost:.2f} nats after the last "
                f"update, {costs[-1]:.2f} before it and {self.chance.nats:.2f} by {self.chance.by}. {self._remedy}"
            )
        lost = after.rejected_cost
        if rejected and lost is not None and lost > max(rejected[0], rejected[-1]) + FAR:
            raise TrainingError(
                f"step {self.steps}: training has diverged: a token of the rejected side costs {lost:.1f} nats after the "
                f"last update, {rejected[-1]:.2f} before it, expected at most {FAR:g} more. {self._remedy}, or raise beta"
            )

    @property
    def _remedy(self) -> str:
        return f"The policy was not handed on. Lower optimizer.learning_rate (now {self.learning_rate:g})"

    def notes(self, costs: Sequence[float]) -> list[str]:
        """Return a sentence where the stage ended worse than it began, though not diverged."""
        if not costs:
            return []
        first, last = costs[0], fmean(costs[-max(1, len(costs) // 10) :])
        if last - first <= max(RISE, RISE_SHARE * first):
            return []
        return [
            f"the loss rose: {self.chance.what} costs {last:.2f} nats in the last tenth of the steps, {first:.2f} in the "
            f"first step ({self.chance.nats:.2f} by {self.chance.by}); lower optimizer.learning_rate (now "
            f"{self.learning_rate:g})"
        ]

    def _recent(self, costs: Sequence[float], step: int) -> float | None:
        """Return the median of the last steps, the first left out; None where there are too few of them to say."""
        window = max(WINDOW, self.steps // 10)
        last = costs[1:][-window:]
        return median(last) if len(last) == window or (step == self.steps and last) else None
