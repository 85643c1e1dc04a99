"""What the self-teaching algorithms share: advantages, and their settings as they stand at a step."""

from functools import partial
from typing import TypeVar

from specs.self_teaching import SelfTaught
from tasks.learning.grouping import Rewarded, Values, by_group, scaled

Taught = TypeVar("Taught", bound=SelfTaught)


def advantages(rewarded: Rewarded, spec: SelfTaught) -> Values:
    """Return the distance of each reward from its group's mean in sample standard deviations."""
    return by_group(rewarded, partial(_scaled, spec.std_floor))


def _scaled(floor: float, rewards: list[float], tokens: list[int]) -> list[float]:
    return scaled(rewards, floor)


def at_step(spec: Taught, step: int, strength: float = 1.0) -> Taught:
    """Return the spec with the coefficients of a step; `strength` 0 switches self-teaching off."""
    match spec.form:
        case "redistribute":
            left = max(0.0, 1 - step / spec.redistribute.decay_steps)
            part = spec.redistribute.model_copy(update={"mix": spec.redistribute.mix * left * strength})
        case "gated":
            part = spec.gated.model_copy(
                update={"coef": spec.gated.coef * strength * _risen(step, spec.gated.warmup_steps)}
            )
        case "success_distill":
            risen = _risen(step, spec.success_distill.warmup_steps)
            part = spec.success_distill.model_copy(update={"coef": spec.success_distill.coef * strength * risen})
    return spec.model_copy(update={spec.form: part})


def _risen(step: int, warmup: int) -> float:
    return 1.0 if warmup == 0 else min(1.0, (step + 1) / warmup)


def temperature_at(spec: SelfTaught, step: int) -> float:
    """Return the temperature of the policy's own tries at a step."""
    last = spec.success_distill.final_temperature
    if spec.form != "success_distill" or last is None or spec.steps < 2:
        return spec.temperature
    return spec.temperature + (last - spec.temperature) * step / (spec.steps - 1)
