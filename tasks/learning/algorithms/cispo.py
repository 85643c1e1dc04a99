"""CISPO: policy gradient with a bounded constant importance weight (arXiv:2506.13585).

L = -sum_it w_it sg(clip(r, ratio_low, ratio_high)) A_i log pi(y_it), r = pi / pi_old; A_i as in GRPO. Tokens beyond a
bound still learn, at the bound's weight. The bounds are absolute: 0.8 and 1.28 are the two-sided form of some
implementations, 0 and 5 (the default) the upper cap of others. Left out: nothing.
B trajectories, T tokens.
"""

from specs.group_relative import CISPO
from tasks.learning.grouping import Rewarded, Values, by_group, scaled
from tasks.learning.surrogate import terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: CISPO) -> Values:
    """Return the distance of each reward from its group's mean in standard deviations."""
    return by_group(rewarded, lambda rewards, _: scaled(rewards, spec.std_floor))


def loss(batch: Batch, spec: CISPO) -> LossOutput:
    """Return minus the weighted sum of bounded ratio times advantage times logprob."""
    t = terms(batch, spec)
    ratio_BT = t.ratio_BT.detach()
    weight_BT = ratio_BT.clamp(spec.ratio_low, spec.ratio_high)
    return total(batch, spec, -weight_BT * t.advantages_BT * t.logprobs_BT, ratio_BT != weight_BT)
