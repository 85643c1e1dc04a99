"""REINFORCE: policy gradient against a baseline (Williams 1992), without an importance ratio.

L = -sum_it w_it A_i log pi(y_it), A_i = R_i - b. The baseline b is the mean reward of the step, the running mean of
earlier steps (RAE of SPIRAL, arXiv:2506.24119), or sum n R / sum n within the group with n the policy's tokens (OPO,
arXiv:2505.23585). `second_best`: A = (R_max - R_2nd) / (sample std + 1e-6) for the first best trajectory of a group
and 0 for the others (best-only pass@k, arXiv:2503.19595). Left out: a learned baseline, a greedy rollout as one.
B trajectories, T tokens.
"""

from statistics import fmean, stdev

from specs.group_relative import REINFORCE
from tasks.learning.grouping import FLAT, Rewarded, Values, by_group, zeros
from tasks.learning.surrogate import terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: REINFORCE) -> Values:
    """Return rewards less the baseline; None where no reward was given."""
    if spec.baseline == "length_weighted":
        return by_group(rewarded, length_weighted)
    if spec.baseline == "second_best":
        return by_group(rewarded, second_best)
    given = rewarded.given()
    if not given:
        return zeros(rewarded)
    mean = fmean(rewarded.value(i) for i in given)
    if spec.baseline == "running_mean" and rewarded.running_mean is not None:
        mean = rewarded.running_mean
    result = zeros(rewarded)
    for i in given:
        difference = rewarded.value(i) - mean
        result[i] = difference if abs(difference) >= FLAT else 0.0
    return result


def next_mean(rewarded: Rewarded, spec: REINFORCE) -> float | None:
    """Return the running mean after a step; the first step's own mean is where it begins."""
    given = rewarded.given()
    if not given:
        return rewarded.running_mean
    mean = fmean(rewarded.value(i) for i in given)
    before = rewarded.running_mean
    return mean if before is None else spec.decay * before + (1 - spec.decay) * mean


def length_weighted(rewards: list[float], tokens: list[int]) -> list[float]:
    """Return R - sum n R / sum n; n counts the policy's tokens."""
    baseline = sum(n * r for n, r in zip(tokens, rewards, strict=True)) / max(1, sum(tokens))
    return [r - baseline for r in rewards]


def second_best(rewards: list[float], tokens: list[int]) -> list[float]:
    """Return the best one's lead over the second, scaled; 0 for the others, and for all where two are best."""
    best, second = sorted(rewards, reverse=True)[:2]
    lead = (best - second) / (stdev(rewards) + FLAT)
    first = rewards.index(best)
    return [lead if i == first else 0.0 for i in range(len(rewards))]


def loss(batch: Batch, spec: REINFORCE) -> LossOutput:
    """Return minus the weighted sum of advantage times logprob."""
    t = terms(batch, spec)
    return total(batch, spec, -t.advantages_BT * t.logprobs_BT)
