"""What a stage minimises, as an equation and in words. Pure."""

import math

from flows.losses import MEAN, policy_gradient_loss
from flows.losses_of_ladder import taught_loss
from flows.losses_of_opd import opd_loss, with_teacher
from flows.losses_of_pairs import preference_loss, weighted_loss
from flows.losses_of_rewards import reward_model_loss
from flows.losses_of_self import compression_words, shortened
from specs.algorithms import Algorithm
from specs.compression import Prune, Quantize
from specs.distillation import OPD
from specs.dominance import dominance_of
from specs.errors import ProgramError
from specs.flywheel import (
    AskPerson,
    Flywheel,
    HardPool,
    Prefer,
    Remedy,
    Repair,
    StopForRewardFix,
    Ticket,
    default_remedy,
)
from specs.ladder import ActionDistill, FromTeacher, SoftLabel
from specs.optimizer import Optimizer
from specs.policy import LoRA
from specs.policy_gradient import PolicyGradient
from specs.preference import PairAlgorithm
from specs.program import Program
from specs.reward import Reward
from specs.reward_models import RewardModel
from specs.routing import Signal
from specs.stages import Stage
from specs.supervised import RFT, SFT, RewardWeighted
from specs.teacher_choice import choice


def effective_loss(algorithm: Algorithm, signal: Signal | None = None, longest: float = math.inf) -> tuple[str, str]:
    """Return the loss that an algorithm minimises: its equation, and what the terms are.

    `signal` is what a stage learns from that asks teachers, `longest` the tokens that the agent allows a completion.
    """
    match algorithm:
        case SFT():
            shown = f"; before {algorithm.shown:.0%} of them stands their own solution" if algorithm.shown else ""
            words = f"over the policy's tokens of demonstrations; {MEAN[algorithm.aggregation]}"
            return "L = - sum w log pi(token)", words + shown
        case RFT():
            words = f"over the policy's tokens of its own trajectories that {_selection(algorithm)}"
            return "L = - sum w log pi(token)", f"{words}; {MEAN[algorithm.aggregation]}"
        case RewardWeighted():
            return weighted_loss(algorithm)
        case PairAlgorithm():
            return preference_loss(algorithm)
        case PolicyGradient():
            return with_teacher(policy_gradient_loss(algorithm), algorithm.distill)
        case OPD():
            return shortened(algorithm, longest, *opd_loss(algorithm))
        case Prune() | Quantize():
            return compression_words(algorithm)
        case RewardModel():
            return reward_model_loss(algorithm)
        case FromTeacher() | SoftLabel() | ActionDistill():
            return taught_loss(algorithm, signal)


def _selection(spec: RFT) -> str:
    parts = ["succeeded" if spec.require_success else "ended"]
    parts += [] if spec.threshold is None else [f"have a reward of at least {spec.threshold:g}"]
    if spec.top_k is not None:
        parts.append(f"the best {spec.top_k} of a problem's {spec.samples}")
    low, high = spec.band
    if (low, high) != (0.0, 1.0):
        parts.append(f"problems with a success rate in [{low:g}, {high:g}]")
    if spec.max_tool_errors is not None:
        parts.append(f"at most {spec.max_tool_errors} tool errors")
    if spec.distinct:
        parts.append("each distinct one once")
    if spec.diversity is not None:
        alike = ["make the same calls"] if spec.diversity.calls else []
        if spec.diversity.max_overlap is not None:
            alike.append(f"share more than {spec.diversity.max_overlap:.0%} of their {spec.diversity.ngram}-grams")
        parts.append(f"of those that {' or '.join(alike)} the better one")
    return ", ".join(parts)


def reward_words(reward: Reward) -> str:
    """Return the reward as a sum in words."""
    total = sum(reward.outcome.values())
    terms = [f"{w / total:g} {name}" for name, w in reward.outcome.items()]
    terms += [f"{w:g} {name} (soft)" for name, w in reward.soft.items()]
    if reward.process_cap > 0:
        terms.append(f"{_process(reward)} for calls that {_process_of(reward)}")
    if reward.per_extra_call < 0:
        terms.append(f"{reward.per_extra_call:g} for each extra call")
    if reward.on_truncation < 0:
        terms.append(f"{reward.on_truncation:g} where cut")
    if (again := reward.repetition) is not None:
        terms.append(f"-{again.coef:g} x the share of {again.ngram}-grams that stood before")
    hard = f"; {reward.floor:g} where {' or '.join(reward.must)} is broken" if reward.must else ""
    return "R = " + " + ".join(terms) + hard


def _process(reward: Reward) -> str:
    earns, loses = bool(reward.process_per_call), bool(reward.process_per_error)
    return f"at most {'+-' if earns and loses else '-' if loses else ''}{reward.process_cap:g}"


def _process_of(reward: Reward) -> str:
    did = ["did something"] if reward.process_per_call else []
    return " or ".join([*did, *(["failed"] if reward.process_per_error else [])])


def _optimizer(spec: Optimizer) -> str:
    words = f"{spec.kind}, learning rate {spec.learning_rate:g} {spec.schedule}"
    return words + (f" after {spec.warmup_steps} steps of warm-up" if spec.warmup_steps else "")


def details(program: Program, reward: Reward, *, rounds_only: bool = False) -> dict[str, object]:
    """Return what a plan tells its reader beside the nodes. ProgramError where a failure may earn what a success does."""
    proof = dominance_of(program, reward)
    rounds = program.flywheel.round.stages if program.flywheel is not None else []
    if not proof.holds and any(s.algorithm.type != "sft" for s in [*program.stages, *rounds]):
        raise ProgramError(f"{program.program}: reward: {proof.text}")
    adapter = program.policy.adapter
    losses = {s.id: _loss(s, adapter, program) for s in program.stages if not rounds_only}
    losses |= {f"{s.id}@round": _loss(s, adapter, program) for s in rounds}
    told: dict[str, object] = {"losses": losses, "reward": reward_words(reward), "dominance": proof.text}
    return told if program.flywheel is None else told | {"flywheel": flywheel_words(program.flywheel)}


def _loss(stage: Stage, adapter: LoRA | None, program: Program) -> dict[str, str]:
    taught = isinstance(stage.algorithm, FromTeacher | SoftLabel | ActionDistill)
    asked = choice(program, stage.algorithm) if taught else None
    longest = program.agent.max_new_tokens
    told = [effective_loss(stage.algorithm, s, longest) for s in (asked.signals if asked else ()) or (None,)]
    equation, words = told[0][0], "; and ".join(words for _, words in told)
    if asked is not None:
        words += f"; asks {', '.join(asked.teachers)}"
        lacking = asked.downgrades()
        words += f"; no finer signal: {', '.join(lacking)}" if lacking else ""
    if isinstance(stage.data, dict) and len(stage.data) > 1:
        what = "the rows of an epoch" if isinstance(stage.algorithm, SFT) else "the problems"
        words += f"; of {what} {_mixture(stage)}"
    if adapter is not None and (adapter.stages is None or stage.id in adapter.stages):
        size = f"rank {adapter.rank}, alpha {adapter.alpha:g}, on {', '.join(dict.fromkeys(adapter.targets))}"
        words += f"; trains an adapter ({size}) and no other weight"
    return {
        "type": stage.algorithm.type,
        "equation": equation,
        "words": words,
        "optimizer": "none" if isinstance(stage.algorithm, Prune | Quantize) else _optimizer(stage.algorithm.optimizer),
    }


def flywheel_words(said: Flywheel) -> dict[str, str]:
    """Return what a round does, in words."""
    mine = said.mine
    tries = "once" if mine.samples == 1 else f"{mine.samples} times"
    mined = (
        f"{mine.problems} problems of {', '.join(mine.sources)}, each tried {tries} at temperature {mine.temperature:g}"
    )
    counted = (
        f"; failures on {', '.join(said.causes_from)} count for causes and give siblings" if said.causes_from else ""
    )
    remedies = [f"{cause}: {_remedy(r)}" for cause, r in said.remedies.items()]
    stages = "; ".join(f"{s.id} ({s.algorithm.type}) from {_mixture(s)}" for s in said.round.stages)
    told = {
        "mined": mined + counted,
        "remedies": "; ".join([*remedies, f"every other cause: {_remedy(default_remedy(said.default))}"]),
        "stages": stages,
    }
    if said.rounds > 1:
        count = said.stop.no_gain_rounds
        on = f" on {said.stop.gain_on}" if said.stop.gain_on else ""
        after = "a round" if count == 1 else f"{count} rounds in a row"
        told["rounds"] = f"at most {said.rounds}; no further one after {after} without a gain in success{on}"
    return told


def _remedy(remedy: Remedy) -> str:
    match remedy:
        case Repair():
            return f"the {remedy.by} solves siblings, at most {remedy.quota} of them, for the pool repaired"
        case Prefer():
            return f"the {remedy.by} solves siblings, at most {remedy.quota} of them, for the pool pairs"
        case HardPool():
            return f"at most {remedy.quota} siblings go into the pool hard"
        case Ticket():
            return "a ticket"
        case AskPerson():
            return "a person is asked"
        case StopForRewardFix():
            return "the round stops until the reward is mended"


def _mixture(stage: Stage) -> str:
    if isinstance(stage.data, list):
        return ", ".join(stage.data)
    total = sum(stage.data.values())
    return ", ".join(f"{name} {weight / total:.0%}" for name, weight in stage.data.items())
