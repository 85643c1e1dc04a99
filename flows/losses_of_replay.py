"""What trains beside the fresh rollouts of a policy gradient, and which problems come up, in words. Pure."""

from specs.policy_gradient import PolicyGradient
from specs.replay import Curriculum, History, Shown


def beside(spec: PolicyGradient) -> list[str]:
    """Return what batches hold beside fresh rollouts, how these and their problems are chosen; nothing where all is plain."""
    words: list[str] = []
    if spec.replay is not None and spec.replay.history is not None:
        words.append(_history(spec.replay.history, spec.steps))
    if spec.replay is not None and spec.replay.demonstrations is not None:
        words.append(_shown(spec.replay.demonstrations))
    if spec.curriculum is not None:
        words.append(_curriculum(spec.curriculum))
    if spec.best_of > 1:
        words.append(f"each trajectory is the best of {spec.best_of} by reward (off-policy: no samples of pi)")
    if spec.adversarial is not None:
        words.append(f"{spec.adversarial:.0%} of the problems are adversarial")
    return words


def _history(spec: History, steps: int) -> str:
    how = "all alike" if spec.alpha == 0 else f"by (|A| + {spec.floor:g})^{spec.alpha:g}"
    if spec.alpha > 0:
        beta = (
            f"{spec.beta:g}" if spec.beta == spec.beta_end else f"{spec.beta:g} to {spec.beta_end:g} in {steps} steps"
        )
        how += f", their terms by (N P)^-b over its largest, b {beta}"
    count = f"{spec.per_step} trajectories" if spec.fill == "always" else f"up to {spec.per_step} for silent groups"
    wanted = "" if spec.admit == "all" else f" {spec.admit} of"
    return (
        f"beside them{wanted} the last {spec.max_age} steps, {count} a step of a buffer of {spec.capacity}, each at most "
        f"{spec.max_uses} times, drawn {how}, weight {spec.weight:g}"
    )


def _shown(spec: Shown) -> str:
    until = "" if spec.until == 1 else f" in the first {spec.until:.0%} of the steps"
    return (
        f"{spec.per_step} demonstrations a step of {', '.join(spec.sets)}{until}, A {spec.advantage:g}, r from 1, "
        f"weight {spec.weight:g}"
    )


def _curriculum(spec: Curriculum) -> str:
    low, high = spec.band
    return (
        f"problems by p (1 - p) + {spec.floor:g} where their success rate p is in [{low:g}, {high:g}], else {spec.floor:g}; "
        f"{spec.explore:.0%} of the draws go to any"
    )
