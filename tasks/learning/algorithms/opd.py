"""On-policy distillation: at each token that the policy sampled, its distribution is drawn to the teacher's.

L = sum w D(policy, teacher) over a vocabulary (`divergences`), or the loss of the sampled tokens (`sampled`).

Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543. Left out: the gradient through the choice of the
prefix, that is the effect of a token on later divergences (`over.discount` of sampled tokens has it).
"""

from specs.distillation import OPD, SampledTokens
from tasks.learning.sampled import sampled_loss
from tasks.learning.teacher_term import vocabulary_loss
from tasks.tensors import Batch, LossOutput


def loss(batch: Batch, spec: OPD) -> LossOutput:
    """Return the weighted distillation loss."""
    if isinstance(spec.over, SampledTokens):
        return sampled_loss(batch, spec, spec.outcome_coef)
    return vocabulary_loss(batch)
