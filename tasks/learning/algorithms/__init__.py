"""Losses, one pure file each; the table below is the only place where an algorithm becomes code."""

from collections.abc import Callable
from functools import partial
from types import ModuleType

from specs.algorithms import Algorithm, PolicyGradientAlgorithm
from specs.base import Spec
from specs.distillation import OPD
from specs.group_relative import CISPO, DAPO, GSPO, REINFORCE, RLOO, DrGRPO
from specs.grpo import GRPO
from specs.preference import DPO, IPO, KTO, ORPO, SimPO
from specs.reward_models import RewardModel
from specs.self_teaching import SelfTaught
from specs.short_opd import ShortOPD
from specs.supervised import RFT, SFT, RewardWeighted
from specs.turn_credit import G2PO, GiGPO
from specs.value_based import PPO, SAO, TurnPPO
from tasks.learning import self_taught
from tasks.learning.algorithms import (
    cispo,
    dapo,
    dpo,
    dr_grpo,
    g2po,
    gigpo,
    grpo,
    gspo,
    ipo,
    kto,
    opd,
    orpo,
    ppo,
    reinforce,
    reward_model,
    reward_weighted,
    rft,
    rloo,
    rlsd,
    sao,
    sdar,
    sft,
    simpo,
    success_distill,
    turn_ppo,
)
from tasks.learning.grouping import Rewarded, TurnValues, Values
from tasks.tensors import Loss

Advantages = Callable[[Rewarded], Values]

MODULES: dict[type[Spec], ModuleType] = {
    SFT: sft,
    RFT: rft,
    RewardWeighted: reward_weighted,
    RewardModel: reward_model,
    OPD: opd,
    ShortOPD: opd,
    DPO: dpo,
    IPO: ipo,
    ORPO: orpo,
    SimPO: simpo,
    KTO: kto,
    REINFORCE: reinforce,
    RLOO: rloo,
    GRPO: grpo,
    DrGRPO: dr_grpo,
    DAPO: dapo,
    GSPO: gspo,
    CISPO: cispo,
    GiGPO: gigpo,
    G2PO: g2po,
    PPO: ppo,
    TurnPPO: turn_ppo,
    SAO: sao,
}
"""The module of each algorithm: `loss`, a policy gradient's `advantages`, and `turn_advantages` where turns have their own."""
FORMS = {"redistribute": rlsd, "gated": sdar, "success_distill": success_distill}
"""The module of each form of self-teaching, which stands for all algorithms that have it."""


def loss_for(spec: Algorithm) -> Loss:
    """Return the loss of an algorithm that has one of its own, bound to its spec."""
    return partial(_module(spec).loss, spec=spec)


def policy_gradient_for(spec: PolicyGradientAlgorithm) -> tuple[Loss, Advantages]:
    """Return the loss and the advantages of a policy-gradient algorithm, bound to its own spec."""
    compared = self_taught if isinstance(spec, SelfTaught) else _module(spec)
    return loss_for(spec), partial(compared.advantages, spec=spec)


def turn_advantages_for(spec: PolicyGradientAlgorithm) -> Callable[[Rewarded], TurnValues] | None:
    """Return what gives each turn an advantage of its own; None where a trajectory has one for all its tokens."""
    by_turn = getattr(_module(spec), "turn_advantages", None)
    return None if by_turn is None else partial(by_turn, spec=spec)


def _module(spec: Algorithm) -> ModuleType:
    if isinstance(spec, SelfTaught):
        return FORMS[spec.form]
    assert type(spec) in MODULES, (
        f"{spec.type} has no loss in the table of tasks/learning/algorithms: it has none at all, or one that follows from "
        "what its teachers give"
    )
    return MODULES[type(spec)]
