"""Turn-PPO: clipped policy gradient whose actions are whole turns (arXiv:2512.17008).

L = sum_k w_k max(-rho_k A_k, -clip(rho_k, 1 - clip_low, 1 + clip_high) A_k) over turns k, by default their mean;
rho_k = exp of the mean (geometric) or of the sum (product) of log pi - log pi_old over the turn's tokens. A_k by
generalised advantage estimation over turns, V_k the critic's value before the turn's first token, the reward on the last
turn (with `turn_rewards` what a turn earned by itself on that turn, the rest on the last). Left out: nothing.
B trajectories, T tokens.
"""

from specs.value_based import TurnPPO
from tasks.learning.grouping import Rewarded, Values, as_given
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput, turn_numbers, turn_sums


def advantages(rewarded: Rewarded, spec: TurnPPO) -> Values:
    """Return the rewards as they are; the critic makes advantages of them turn by turn."""
    return as_given(rewarded)


def loss(batch: Batch, spec: TurnPPO) -> LossOutput:
    """Return minus the surrogate clipped by turn."""
    t = terms(batch, spec)
    turns_BT = turn_numbers(t.mask_BT)
    log_ratio_BT = turn_sums(t.log_ratio_BT, turns_BT)
    if spec.ratio == "geometric":
        log_ratio_BT = log_ratio_BT / turn_sums(t.mask_BT.to(log_ratio_BT.dtype), turns_BT).clamp(min=1)
    return total(batch, spec, *clipped(log_ratio_BT.clamp(-20.0, 20.0).exp(), t.advantages_BT, spec))
