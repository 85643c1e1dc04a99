"""The distillation term beside another loss, and its weight over a stage's steps."""

from specs.distillation import SampledTokens, TeacherTerm
from specs.records import Trajectory
from tasks.learning.sampled import sampled_loss
from tasks.tensors import Batch, Loss, LossOutput


def vocabulary_loss(batch: Batch) -> LossOutput:
    """Return the divergences that the forward pass found, with their figures."""
    assert batch.distilled is not None, "a divergence over a vocabulary needs the learner's distiller"
    return LossOutput(batch.distilled, {}, dict(batch.distill_figures or {}))


def with_teacher(loss: Loss, term: TeacherTerm, coef: float) -> Loss:
    """Return a loss plus `coef` x the distillation term, which has a denominator of its own."""

    def both(batch: Batch) -> LossOutput:
        first = loss(batch)
        second = sampled_loss(batch, term) if isinstance(term.over, SampledTokens) else vocabulary_loss(batch)
        return LossOutput(first.loss + coef * second.loss, first.metrics, first.own | second.own)

    return both


def coefficient(term: TeacherTerm, step: int, steps: int) -> float:
    """Return the weight of the term at a step, the first being 0."""
    if term.coef_end is None or steps < 2:
        return term.coef
    return term.coef + (term.coef_end - term.coef) * step / (steps - 1)


def length_factor(term: TeacherTerm, trajectory: Trajectory) -> float:
    """Return how much a trajectory counts by its length."""
    return 1.0 if term.full_length is None else min(1.0, term.full_length / max(1, trajectory.policy_tokens))
