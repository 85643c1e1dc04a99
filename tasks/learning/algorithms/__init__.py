"""Losses, one pure file each; `loss_for` is the only place where an algorithm's name becomes code."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from specs.algorithms import (
    DPO,
    IPO,
    KTO,
    ORPO,
    RFT,
    SFT,
    Algorithm,
    PairAlgorithm,
    Preference,
    RewardWeighted,
    SimPO,
)
from specs.policy_gradient import (
    CISPO,
    DAPO,
    G2PO,
    GRPO,
    GSPO,
    PPO,
    REINFORCE,
    RLOO,
    SAO,
    DrGRPO,
    GiGPO,
    PolicyGradient,
    PolicyGradientAlgorithm,
    TurnPPO,
)
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
        case PairAlgorithm():
            return preference_for(spec)
        case PolicyGradient():
            return policy_gradient_for(spec)[0]
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
