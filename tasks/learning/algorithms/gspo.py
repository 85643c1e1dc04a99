"""GSPO: clipped policy gradient on the ratio of whole trajectories (arXiv:2507.18071).

s_i = exp(mean_t (log pi - log pi_old)); A_i as in GRPO; L = sum_it w_it max(-A s_i, -A clip(s_i, 1 - clip_low,
1 + clip_high)), by default a mean over trajectories; every token of a trajectory has the gradient s_i A_i / n_i.
The contexts of a trajectory have one ratio together, over all their tokens. pi_old is the trainer's before the update, as the
noise of another engine is beyond such a clip.
Left out: the token variant, which is the same where a trajectory has one advantage.
B trajectories, T tokens.
"""

from specs.group_relative import GSPO
from tasks.learning.grouping import Rewarded, Values, by_group, scaled
from tasks.learning.surrogate import clipped, row_means, terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: GSPO) -> Values:
    """Return the distance of each reward from its group's mean in standard deviations."""
    return by_group(rewarded, lambda rewards, _: scaled(rewards, spec.std_floor))


def loss(batch: Batch, spec: GSPO) -> LossOutput:
    """Return minus the surrogate clipped by trajectory."""
    t = terms(batch, spec)
    ratio_B1 = row_means(t.log_ratio_BT, t.mask_BT, batch.units_B).clamp(-20.0, 20.0).exp()
    return total(batch, spec, *clipped(ratio_B1.expand_as(t.advantages_BT), t.advantages_BT, spec))
