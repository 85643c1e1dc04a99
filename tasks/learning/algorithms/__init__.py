"""Losses, one pure file each; `loss_for` is the only place where an algorithm's name becomes code."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from specs.algorithms import Algorithm, PolicyGradientAlgorithm
from specs.compression import Prune, Quantize
from specs.distillation import OPD
from specs.group_relative import CISPO, DAPO, GSPO, REINFORCE, RLOO, DrGRPO
from specs.grpo import GRPO
from specs.ladder import ActionDistill, FromTeacher, SoftLabel
from specs.policy_gradient import PolicyGradient
from specs.preference import DPO, IPO, KTO, ORPO, PairAlgorithm, Preference, SimPO
from specs.reward_models import RewardModel
from specs.self_teaching import RLSD, SelfDistilled, SelfEvolve
from specs.short_opd import ShortOPD
from specs.supervised import RFT, SFT, RewardWeighted
from specs.turn_credit import G2PO, GiGPO
from specs.value_based import PPO, SAO, TurnPPO
from tasks.learning.grouping import Rewarded, TurnValues, Values
from tasks.tensors import Loss

Advantages = Callable[[Rewarded], Values]


def loss_for(spec: Algorithm) -> Loss:
    """Return the loss of an algorithm, bound to its own spec."""
    match spec:
        case SFT():
            from tasks.learning.algorithms import sft

            return partial(sft.loss, spec=spec)
        case RFT():
            from tasks.learning.algorithms import rft

            return partial(rft.loss, spec=spec)
        case RewardWeighted():
            from tasks.learning.algorithms import reward_weighted

            return partial(reward_weighted.loss, spec=spec)
        case RewardModel():
            from tasks.learning.algorithms import reward_model

            return partial(reward_model.loss, spec=spec)
        case OPD() | ShortOPD():
            from tasks.learning.algorithms import opd

            return partial(opd.loss, spec=spec)
        case PairAlgorithm():
            return preference_for(spec)
        case PolicyGradient():
            return policy_gradient_for(spec)[0]
        case Prune() | Quantize():
            raise AssertionError(f"{spec.type} changes weights without a loss")
        case FromTeacher() | SoftLabel() | ActionDistill():
            raise AssertionError(
                f"{spec.type}: the loss follows from the signal that its teachers give, not from its type"
            )
        case _:
            assert_never(spec)


def preference_for(spec: Preference) -> Loss:
    """Return the loss of an algorithm on pairs, bound to its own spec."""
    match spec:
        case DPO():
            from tasks.learning.algorithms import dpo

            return partial(dpo.loss, spec=spec)
        case IPO():
            from tasks.learning.algorithms import ipo

            return partial(ipo.loss, spec=spec)
        case ORPO():
            from tasks.learning.algorithms import orpo

            return partial(orpo.loss, spec=spec)
        case SimPO():
            from tasks.learning.algorithms import simpo

            return partial(simpo.loss, spec=spec)
        case KTO():
            from tasks.learning.algorithms import kto

            return partial(kto.loss, spec=spec)
        case _:
            assert_never(spec)


def policy_gradient_for(spec: PolicyGradientAlgorithm) -> tuple[Loss, Advantages]:
    """Return the loss and the advantages of a policy-gradient algorithm, bound to its own spec."""
    match spec:
        case REINFORCE():
            from tasks.learning.algorithms import reinforce

            return partial(reinforce.loss, spec=spec), partial(reinforce.advantages, spec=spec)
        case RLOO():
            from tasks.learning.algorithms import rloo

            return partial(rloo.loss, spec=spec), partial(rloo.advantages, spec=spec)
        case GRPO():
            from tasks.learning.algorithms import grpo

            return partial(grpo.loss, spec=spec), partial(grpo.advantages, spec=spec)
        case DrGRPO():
            from tasks.learning.algorithms import dr_grpo

            return partial(dr_grpo.loss, spec=spec), partial(dr_grpo.advantages, spec=spec)
        case DAPO():
            from tasks.learning.algorithms import dapo

            return partial(dapo.loss, spec=spec), partial(dapo.advantages, spec=spec)
        case GSPO():
            from tasks.learning.algorithms import gspo

            return partial(gspo.loss, spec=spec), partial(gspo.advantages, spec=spec)
        case CISPO():
            from tasks.learning.algorithms import cispo

            return partial(cispo.loss, spec=spec), partial(cispo.advantages, spec=spec)
        case GiGPO() | G2PO() | PPO() | TurnPPO() | SAO():
            return _with_finer_credit(spec)
        case RLSD() | SelfDistilled() | SelfEvolve():
            return _self_taught(spec)
        case _:
            assert_never(spec)


def _with_finer_credit(spec: GiGPO | G2PO | PPO | TurnPPO | SAO) -> tuple[Loss, Advantages]:
    """Return loss and advantages by trajectory of the algorithms that divide these further, by turn or by token."""
    match spec:
        case GiGPO():
            from tasks.learning.algorithms import gigpo

            return partial(gigpo.loss, spec=spec), partial(gigpo.advantages, spec=spec)
        case G2PO():
            from tasks.learning.algorithms import g2po

            return partial(g2po.loss, spec=spec), partial(g2po.advantages, spec=spec)
        case PPO():
            from tasks.learning.algorithms import ppo

            return partial(ppo.loss, spec=spec), partial(ppo.advantages, spec=spec)
        case TurnPPO():
            from tasks.learning.algorithms import turn_ppo

            return partial(turn_ppo.loss, spec=spec), partial(turn_ppo.advantages, spec=spec)
        case SAO():
            from tasks.learning.algorithms import sao

            return partial(sao.loss, spec=spec), partial(sao.advantages, spec=spec)


def _self_taught(spec: RLSD | SelfDistilled | SelfEvolve) -> tuple[Loss, Advantages]:
    """Return the loss of a form of self-teaching, and the advantages that all of them have."""
    from tasks.learning.self_taught import advantages

    compared = partial(advantages, spec=spec)
    match spec.form:
        case "redistribute":
            from tasks.learning.algorithms import rlsd

            return partial(rlsd.loss, spec=spec), compared
        case "gated":
            from tasks.learning.algorithms import sdar

            return partial(sdar.loss, spec=spec), compared
        case "success_distill":
            from tasks.learning.algorithms import success_distill

            return partial(success_distill.loss, spec=spec), compared


def turn_advantages_for(spec: PolicyGradientAlgorithm) -> Callable[[Rewarded], TurnValues] | None:
    """Return what gives each turn an advantage of its own; None where a trajectory has one for all its tokens."""
    match spec:
        case GiGPO():
            from tasks.learning.algorithms import gigpo

            return partial(gigpo.turn_advantages, spec=spec)
        case G2PO():
            from tasks.learning.algorithms import g2po

            return partial(g2po.turn_advantages, spec=spec)
        case _:
            return None
