"""RLSD: a privileged self redistributes the verifier's advantage over the tokens of a trajectory (arXiv:2604.03128).

d_t = stop(log pi_T(y_t | context, shown) - log pi(y_t | context)), w_t = exp(sign(A) d_t) clipped to 1 -+ clip,
A_t = A ((1 - mix) + mix w_t), and A_t goes into the clipped surrogate. The sign is the verifier's: A = 0 stays 0. With
`kl: k1_in_reward`, k1 is taken off A_t afterwards, so that neither sign nor weights depend on it.
`mix` is that of the step: it falls linearly to nothing. Left out: a teacher that moves with every update.
B trajectories, T tokens.
"""

import torch
from torch import Tensor

from specs.self_teaching import Redistribute, SelfTaught
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def token_weights(advantages_BT: Tensor, teacher_BT: Tensor, policy_BT: Tensor, clip: float) -> Tensor:
    """Return exp(sign(A) d) within 1 -+ clip, constant."""
    signed_BT = advantages_BT.sign() * (teacher_BT - policy_BT)
    return signed_BT.detach().clamp(-20.0, 20.0).exp().clamp(1 - clip, 1 + clip)


def redistributed(advantages_BT: Tensor, weights_BT: Tensor, spec: Redistribute) -> Tensor:
    """Return the advantages, moved towards the tokens that the teacher holds responsible."""
    return advantages_BT * ((1 - spec.mix) + spec.mix * weights_BT)


def loss(batch: Batch, spec: SelfTaught) -> LossOutput:
    """Return minus the clipped surrogate on redistributed advantages; a token without a teacher keeps its own."""
    t = terms(batch, spec)
    assert batch.teacher_logprobs_BT is not None, "redistribution needs the teacher's logprobs"
    known_BT = t.mask_BT & batch.teacher_logprobs_BT.isfinite()
    teacher_BT = torch.where(known_BT, batch.teacher_logprobs_BT, t.logprobs_BT.detach())
    weights_BT = token_weights(t.given_BT, teacher_BT, t.logprobs_BT, spec.redistribute.clip)
    advantages_BT = t.less_penalty(redistributed(t.given_BT, weights_BT, spec.redistribute))
    made = total(batch, spec, *clipped(t.ratio_BT, advantages_BT, spec))
    gap_BT = torch.where(known_BT, teacher_BT - t.logprobs_BT.detach(), 0.0)
    made.metrics["teacher_gap"] = (batch.weights_BT * gap_BT).sum()
    made.metrics["redistributed"] = (batch.weights_BT * (weights_BT - 1).abs() * spec.redistribute.mix).sum()
    return made
