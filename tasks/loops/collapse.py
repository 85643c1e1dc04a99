"""The collapse guard of self-taught stages: what counts as a step that only repeats itself, and when to stop."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from specs.errors import TrainingError
from specs.self_teaching import CollapseGuard


@dataclass(slots=True)
class Guarded:
    """What the guard remembers of earlier steps."""

    successes: list[float] = field(default_factory=list[float])
    best: float = 0.0
    """Best mean success of `patience` steps in a row."""
    run: int = 0
    """Collapsed steps in a row."""
    strength: float = 1.0
    """0 once self-teaching was switched off."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {"successes": self.successes, "best": self.best, "run": self.run, "strength": self.strength}


def watch(known: Guarded, spec: CollapseGuard, figures: dict[str, float], step: int) -> None:
    """Take in a step. Raises TrainingError where `patience` steps in a row have collapsed."""
    known.successes = [*known.successes, figures["success"]][-spec.patience :]
    mean = fmean(known.successes)
    if len(known.successes) == spec.patience:
        known.best = max(known.best, mean)
    fell = known.best - mean > spec.max_drop
    signs = [
        f"success fell from {known.best:.2f} to {mean:.2f} (guard.max_drop {spec.max_drop:g})" if fell else "",
        f"the entropy is {figures['entropy']:.4f} (guard.min_entropy {spec.min_entropy:g})"
        if figures.get("entropy", spec.min_entropy) < spec.min_entropy
        else "",
        f"{figures['repeated']:.0%} of the trajectories repeat another (guard.max_repeated {spec.max_repeated:g})"
        if figures["repeated"] > spec.max_repeated
        else "",
    ]
    told = [sign for sign in signs if sign]
    known.run = known.run + 1 if told else 0
    if fell and spec.cut_first:
        known.strength = 0.0
    if known.run >= spec.patience:
        raise TrainingError(
            f"step {step}: self-teaching has collapsed for {known.run} steps in a row: {'; '.join(told)}. Start again from "
            "an earlier stage with a smaller coefficient, a larger share of exploration or kl_coef, or a later promotion"
        )
