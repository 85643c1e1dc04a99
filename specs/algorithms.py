"""Algorithms: what a stage does to the policy. Each file of `tasks/learning/algorithms` reads its own class."""

from typing import TYPE_CHECKING, Annotated, Any

from specs.unions import Members

PREFERENCES = {
    "dpo": "specs.preference:DPO",
    "ipo": "specs.preference:IPO",
    "orpo": "specs.preference:ORPO",
    "simpo": "specs.preference:SimPO",
    "kto": "specs.preference:KTO",
}
"""Those that learn from pairs, by type."""
POLICY_GRADIENTS = {
    "reinforce": "specs.group_relative:REINFORCE",
    "rloo": "specs.group_relative:RLOO",
    "grpo": "specs.grpo:GRPO",
    "dr_grpo": "specs.group_relative:DrGRPO",
    "dapo": "specs.group_relative:DAPO",
    "gspo": "specs.group_relative:GSPO",
    "cispo": "specs.group_relative:CISPO",
    "gigpo": "specs.turn_credit:GiGPO",
    "g2po": "specs.turn_credit:G2PO",
    "ppo": "specs.value_based:PPO",
    "turn_ppo": "specs.value_based:TurnPPO",
    "sao": "specs.value_based:SAO",
    "rlsd": "specs.self_teaching:RLSD",
    "self_distilled": "specs.self_teaching:SelfDistilled",
    "self_evolve": "specs.self_teaching:SelfEvolve",
}
"""The policy gradients, by type."""
ALGORITHMS = Members(
    "type",
    {
        "sft": "specs.supervised:SFT",
        "rft": "specs.supervised:RFT",
        "reward_weighted": "specs.supervised:RewardWeighted",
        **PREFERENCES,
        **POLICY_GRADIENTS,
        "opd": "specs.distillation:OPD",
        "short_opd": "specs.short_opd:ShortOPD",
        "from_teacher": "specs.ladder:FromTeacher",
        "soft_label": "specs.ladder:SoftLabel",
        "action_distill": "specs.ladder:ActionDistill",
        "reward_model": "specs.reward_models:RewardModel",
        "prune": "specs.compression:Prune",
        "quantize": "specs.compression:Quantize",
    },
)
"""Every algorithm by its type. A class is imported when a program uses it."""

if TYPE_CHECKING:
    from specs.compression import Compression
    from specs.distillation import OPD
    from specs.group_relative import CISPO, DAPO, GSPO, REINFORCE, RLOO, DrGRPO
    from specs.grpo import GRPO
    from specs.ladder import TaughtAlgorithm
    from specs.preference import Preference
    from specs.reward_models import RewardModel
    from specs.self_teaching import RLSD, SelfDistilled, SelfEvolve
    from specs.short_opd import ShortOPD
    from specs.supervised import RFT, SFT, RewardWeighted
    from specs.turn_credit import G2PO, GiGPO
    from specs.value_based import PPO, SAO, TurnPPO

    PolicyGradientAlgorithm = (
        REINFORCE | RLOO | GRPO | DrGRPO | DAPO | GSPO | CISPO | GiGPO | G2PO | PPO | TurnPPO | SAO
        | RLSD | SelfDistilled | SelfEvolve
    )  # fmt: skip
    Algorithm = (
        SFT | RFT | RewardWeighted | RewardModel | OPD | ShortOPD | TaughtAlgorithm | Preference | PolicyGradientAlgorithm
        | Compression
    )  # fmt: skip
else:
    PolicyGradientAlgorithm = Any
    Algorithm = Annotated[Any, ALGORITHMS]


def policy_gradient_from(data: object) -> "PolicyGradientAlgorithm":
    """Return the policy gradient that plain data stand for."""
    found: Any = ALGORITHMS.validate(data)
    assert found.type in POLICY_GRADIENTS, f"{found.type} is no policy gradient"
    return found
