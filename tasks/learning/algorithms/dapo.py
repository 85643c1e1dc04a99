"""DAPO: GRPO with clip-higher, token mean, dynamic sampling and no signal from length (arXiv:2503.14476).

A_i = (R_i - mean R) / (sample std R + std_floor) within a group; R holds the soft overlong penalty where one is
declared: 0 up to limit - buffer policy tokens, then (limit - buffer - n) / buffer, -1 from the limit on.
L = sum_it w_it max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A). Groups that do not vary are replaced while the step
has rounds left (`resample`). Left out: the paper's 1 + clip_high of 1.28 is the default; its limits (20480, 4096) are not.
B trajectories, T tokens.
"""

from dataclasses import replace

from specs.group_relative import DAPO, SoftOverlong
from tasks.learning.grouping import Rewarded, Values, by_group, scaled
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def penalty(tokens: int, spec: SoftOverlong) -> float:
    """Return the soft overlong penalty of a trajectory with so many policy tokens."""
    over = tokens - (spec.limit - spec.buffer)
    return -min(1.0, over / spec.buffer) if over > 0 else 0.0


def penalised(rewarded: Rewarded, spec: DAPO) -> Rewarded:
    """Return the rewards less the penalty for length, where one is declared."""
    if spec.overlong is None:
        return rewarded
    soft = spec.overlong
    pairs = zip(rewarded.rewards, rewarded.tokens, strict=True)
    return replace(rewarded, rewards=[None if r is None else r + penalty(n, soft) for r, n in pairs])


def advantages(rewarded: Rewarded, spec: DAPO) -> Values:
    """Return the distance of each penalised reward from its group's mean in standard deviations."""
    return by_group(penalised(rewarded, spec), lambda rewards, _: scaled(rewards, spec.std_floor))


def loss(batch: Batch, spec: DAPO) -> LossOutput:
    """Return minus the clipped surrogate."""
    t = terms(batch, spec)
    return total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))
