"""RLOO: policy gradient against the mean reward of a group's other trajectories (arXiv:2402.14740).

L = -sum_it w_it A_i log pi(y_it), A_i = R_i - mean_{j != i} R_j = G / (G - 1) (R_i - mean R), G trajectories of a
problem. KL is taken off the advantages unless said otherwise. Left out: an importance ratio, so one pass over a batch.
B trajectories, T tokens.
"""

from statistics import fmean

from specs.group_relative import RLOO
from tasks.learning.grouping import Rewarded, Values, by_group
from tasks.learning.surrogate import terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: RLOO) -> Values:
    """Return rewards less the mean of the others with a reward; groups of one or without variance give 0."""
    return by_group(rewarded, leave_one_out)


def leave_one_out(rewards: list[float], tokens: list[int]) -> list[float]:
    """Return R_i - mean of the others."""
    mean, count = fmean(rewards), len(rewards)
    return [count / (count - 1) * (r - mean) for r in rewards]


def loss(batch: Batch, spec: RLOO) -> LossOutput:
    """Return minus the weighted sum of advantage times logprob."""
    t = terms(batch, spec)
    return total(batch, spec, -t.advantages_BT * t.logprobs_BT)
