"""What a stage minimises, as an equation and in words. Pure."""

from specs.algorithms import GRPO, RFT, SFT, Algorithm, Optimizer
from specs.dominance import DominanceReport, dominance
from specs.errors import ProgramError
from specs.program import Program
from specs.reward import Reward

_MEAN = {
    "token": "w = 1 / trained tokens of the step (every token counts the same)",
    "sequence": "w = 1 / (trajectories x trained tokens of the trajectory) (every trajectory counts the same)",
}


def effective_loss(algorithm: Algorithm) -> tuple[str, str]:
    """Return the loss that an algorithm minimises: its equation, and what the terms are."""
    match algorithm:
        case SFT():
            return (
                "L = - sum w log pi(token)",
                f"over the policy's tokens of demonstrations; {_MEAN[algorithm.aggregation]}",
            )
        case RFT():
            words = f"over the policy's tokens of its own trajectories that {_selection(algorithm)}"
            return "L = - sum w log pi(token)", f"{words}; {_MEAN[algorithm.aggregation]}"
        case GRPO():
            return _grpo(algorithm)


def _selection(spec: RFT) -> str:
    parts = ["succeeded" if spec.threshold is None else f"have a reward of at least {spec.threshold:g}"]
    if spec.top_k is not None:
        parts.append(f"the best {spec.top_k} of a problem's {spec.samples}")
    low, high = spec.band
    if (low, high) != (0.0, 1.0):
        parts.append(f"problems with a success rate in [{low:g}, {high:g}]")
    if spec.max_tool_errors is not None:
        parts.append(f"at most {spec.max_tool_errors} tool errors")
    if spec.distinct:
        parts.append("each distinct one once")
    return ", ".join(parts)


def _grpo(spec: GRPO) -> tuple[str, str]:
    equation = f"L = - sum w min(r A, clip(r, {1 - spec.clip_low:g}, {1 + spec.clip_high:g}) A)"
    if spec.kl_coef > 0:
        equation += f" + {spec.kl_coef:g} sum w k3(pi || start)"
    spread = "(R - mean) / std" if spec.scale_rewards == "group_std" else "R - mean"
    words = [
        f"A = {spread} within a group of {spec.group_size}",
        "r = pi / sampler" + ("" if spec.updates_per_batch == 1 else ", from the second pass on pi / pi of the first"),
        _MEAN[spec.aggregation],
        "cut trajectories are left out" if spec.truncated == "mask" else "cut trajectories train with their reward",
        "no reference" if spec.kl_coef == 0 else "start = the policy that the stage started from",
    ]
    return equation, "; ".join(words)


def reward_words(reward: Reward) -> str:
    """Return the reward as a sum in words."""
    total = sum(reward.outcome.values())
    terms = [f"{w / total:g} {name}" for name, w in reward.outcome.items()]
    terms += [f"{w:g} {name} (soft)" for name, w in reward.soft.items()]
    if reward.process_cap > 0:
        terms.append(f"at most {reward.process_cap:g} for calls that did something")
    if reward.per_extra_call < 0:
        terms.append(f"{reward.per_extra_call:g} for each extra call")
    if reward.on_truncation < 0:
        terms.append(f"{reward.on_truncation:g} where cut")
    hard = f"; {reward.floor:g} where {' or '.join(reward.must)} is broken" if reward.must else ""
    return "R = " + " + ".join(terms) + hard


def _optimizer(spec: Optimizer) -> str:
    words = f"{spec.kind}, learning rate {spec.learning_rate:g} {spec.schedule}"
    return words + (f" after {spec.warmup_steps} steps of warm-up" if spec.warmup_steps else "")


def dominance_of(program: Program, reward: Reward) -> DominanceReport:
    """Return whether every success earns more than every failure, in the environment with the longest episodes."""
    return dominance(reward, max(e.max_turns for e in program.environments.values()))


def details(program: Program, reward: Reward) -> dict[str, object]:
    """Return what a plan tells its reader beside the nodes. ProgramError where a failure may earn what a success does."""
    proof = dominance_of(program, reward)
    if not proof.holds and any(s.algorithm.type != "sft" for s in program.stages):
        raise ProgramError(f"{program.program}: reward: {proof.text}")
    losses: dict[str, dict[str, str]] = {}
    for stage in program.stages:
        equation, words = effective_loss(stage.algorithm)
        losses[stage.id] = {
            "type": stage.algorithm.type,
            "equation": equation,
            "words": words,
            "optimizer": _optimizer(stage.algorithm.optimizer),
        }
    return {"losses": losses, "reward": reward_words(reward), "dominance": proof.text}
