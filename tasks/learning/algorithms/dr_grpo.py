"""Dr. GRPO: clipped policy gradient on group-centred rewards, summed over tokens (arXiv:2503.20783).

A_i = R_i - mean R within a group: no standard deviation, so no weight on problems that are almost right or wrong.
L = sum_it m_it / (B budget) max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A): `aggregation: constant` with a token
budget that is the same in every step, so no weight on lengths. Left out: nothing; KL is 0 unless declared.
B trajectories, T tokens.
"""

from specs.group_relative import DrGRPO
from tasks.learning.grouping import Rewarded, Values, by_group, centred
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: DrGRPO) -> Values:
    """Return rewards less their group's mean; None where no reward was given."""
    return by_group(rewarded, centred)


def loss(batch: Batch, spec: DrGRPO) -> LossOutput:
    """Return minus the clipped surrogate."""
    t = terms(batch, spec)
    return total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))
