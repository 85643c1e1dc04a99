"""PPO: clipped policy gradient on advantages from a critic (arXiv:1707.06347; GAE, 1506.02438).

L = sum_it w_it max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A), A_it by generalised advantage estimation over the
policy's own tokens, the trajectory's reward on its last one (with `turn_rewards` what a turn earned by itself on that turn's
last); length-adaptive lambda of VAPO (2504.05118) as declared. The critic minimises half the (clipped) squared error to the
returns, in updates of its own, or in the policy's where it is a head of it (`critic.backbone: shared`). Left out: a
bootstrap value for cut trajectories (they are judged), KL carried back by the discount. B trajectories, T tokens.
"""

from specs.value_based import PPO
from tasks.learning.grouping import Rewarded, Values, as_given
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: PPO) -> Values:
    """Return the rewards as they are; the critic makes advantages of them token by token."""
    return as_given(rewarded)


def loss(batch: Batch, spec: PPO) -> LossOutput:
    """Return minus the clipped surrogate."""
    t = terms(batch, spec)
    return total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))
