"""SDAR: the policy's own tokens, each by how much more a privileged self likes it (arXiv:2605.15155).

L = L_clipped + coef sum w g (stop(log pi_T) - log pi), g = stop(sigmoid(sharpness (log pi_T - log pi))): the likelihood
of every token rises, much where the teacher likes it better and little where not. w is the mean of `aggregation` over all
trajectories, those without an advantage too.
`coef` is that of the step. Left out: KL to a reference (`kl_coef` adds it).
B trajectories, T tokens.
"""

import torch
from torch import Tensor

from specs.self_teaching import SelfTaught
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def gate(teacher_BT: Tensor, policy_BT: Tensor, sharpness: float) -> Tensor:
    """Return sigmoid(sharpness x (teacher - policy)), constant."""
    return (sharpness * (teacher_BT - policy_BT)).detach().sigmoid()


def distillation(teacher_BT: Tensor, policy_BT: Tensor, weights_BT: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return the gated distillation and its gates."""
    gate_BT = gate(teacher_BT, policy_BT, sharpness)
    return (weights_BT * gate_BT * (teacher_BT.detach() - policy_BT)).sum(), gate_BT


def loss(batch: Batch, spec: SelfTaught) -> LossOutput:
    """Return minus the clipped surrogate plus the gated distillation on tokens that have a teacher."""
    t = terms(batch, spec)
    made = total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))
    assert batch.teacher_logprobs_BT is not None, "a gate needs the teacher's logprobs"
    known_BT = t.mask_BT & batch.teacher_logprobs_BT.isfinite()
    weights_BT = torch.where(known_BT, batch.weights_BT, 0.0)
    teacher_BT = torch.where(known_BT, batch.teacher_logprobs_BT, 0.0)
    policy_BT = torch.where(known_BT, batch.logprobs_BT, 0.0)
    term, gate_BT = distillation(teacher_BT, policy_BT, weights_BT, spec.gated.sharpness)
    made.loss = made.loss + spec.gated.coef * term
    made.metrics["gate"] = (weights_BT * gate_BT).sum()
    made.metrics["teacher_gap"] = (weights_BT * (teacher_BT - policy_BT)).sum().detach()
    return made
