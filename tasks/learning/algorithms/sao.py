"""SAO: single rollouts, a critic, and a double-sided mask on drifted tokens (arXiv:2607.07508).

L = - sum_it w_it sg(f(r)) A_it log pi(y_it), r = pi / sampler directly, f(r) = r where 1 - drift_low < r < 1 + drift_high
and 0 elsewhere, whatever the sign of A. Dropped tokens stay in the mean, so that much rejection makes a small step. A by
GAE with lambda = 1 - 1 / (1.5 tokens), the critic's targets with lambda 1, two critic updates for one of the policy.
Left out: the asynchronous loop (it is a loop, not a loss), freezing the critic's attention, its longer pre-training.
B trajectories, T tokens.
"""

import torch

from specs.value_based import SAO
from tasks.learning.grouping import Rewarded, Values, as_given
from tasks.learning.surrogate import terms, total
from tasks.tensors import Batch, LossOutput, importance_ratio


def advantages(rewarded: Rewarded, spec: SAO) -> Values:
    """Return the rewards as they are; the critic makes advantages of them token by token."""
    return as_given(rewarded)


def loss(batch: Batch, spec: SAO) -> LossOutput:
    """Return minus the weighted sum of masked ratio times advantage times logprob."""
    assert batch.sampler_logprobs_BT is not None, "SAO needs sampler logprobs"
    t = terms(batch, spec)
    ratio_BT = importance_ratio(batch.logprobs_BT.detach(), batch.sampler_logprobs_BT, t.mask_BT)
    kept_BT = (ratio_BT > 1 - spec.drift_low) & (ratio_BT < 1 + spec.drift_high)
    weight_BT = torch.where(kept_BT, ratio_BT, 0.0)
    return total(batch, spec, -weight_BT * t.advantages_BT * t.logprobs_BT, ~kept_BT)
