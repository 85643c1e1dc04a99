"""What the policy-gradient losses share: masked ratios, clips, KL and entropy, each computed in one place.

B trajectories, T tokens, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specs.policy_gradient import PolicyGradient
from tasks.tensors import Batch, LossOutput, importance_ratio


@dataclass(frozen=True, slots=True)
class Terms:
    """A micro-batch as the losses read it; everything is finite, 0 (ratios: 1) where nothing trains."""

    mask_BT: Tensor
    logprobs_BT: Tensor
    ratio_BT: Tensor
    """pi / pi_old where the trainer's logprobs before the update are given, else pi / sampler."""
    log_ratio_BT: Tensor
    given_BT: Tensor
    """The advantages as they were given, constant."""
    penalty_BT: Tensor | None
    """What `kl: k1_in_reward` takes off them; None where it does not."""

    @property
    def advantages_BT(self) -> Tensor:
        """Return the advantages, k1 taken off where `kl` says so."""
        return self.less_penalty(self.given_BT)

    def less_penalty(self, advantages_BT: Tensor) -> Tensor:
        """Return advantages with k1 taken off where `kl` says so."""
        return advantages_BT if self.penalty_BT is None else advantages_BT - self.penalty_BT


class Clips(Protocol):
    """The bounds of a clipped surrogate."""

    @property
    def clip_low(self) -> float:
        """Return how far below 1 the ratio counts."""
        ...

    @property
    def clip_high(self) -> float:
        """Return how far above 1 the ratio counts."""
        ...

    @property
    def dual_clip(self) -> float | None:
        """Return the bound of the loss in multiples of -A where A < 0."""
        ...


def terms(batch: Batch, spec: PolicyGradient) -> Terms:
    """Return the batch, masked before any arithmetic. Needs advantages and old or sampler logprobs."""
    old_BT = batch.old_logprobs_BT if batch.old_logprobs_BT is not None else batch.sampler_logprobs_BT
    assert old_BT is not None, f"{type(spec).__name__} needs old or sampler logprobs"
    assert batch.advantages_BT is not None, f"{type(spec).__name__} needs advantages"
    mask_BT = batch.weights_BT > 0
    logprobs_BT = torch.where(mask_BT, batch.logprobs_BT, 0.0)
    old_BT = torch.where(mask_BT, old_BT, 0.0)
    penalty_BT = None
    if spec.kl_coef > 0 and spec.kl == "k1_in_reward":
        penalty_BT = spec.kl_coef * kl_k1(old_BT, _reference(batch), mask_BT)
    return Terms(
        mask_BT=mask_BT,
        logprobs_BT=logprobs_BT,
        ratio_BT=importance_ratio(logprobs_BT, old_BT, mask_BT),
        log_ratio_BT=logprobs_BT - old_BT,
        given_BT=torch.where(mask_BT, batch.advantages_BT, 0.0),
        penalty_BT=penalty_BT,
    )


def clipped(ratio_BT: Tensor, advantages_BT: Tensor, clips: Clips) -> tuple[Tensor, Tensor]:
    """Return max(-A r, -A clip(r)) and where a bound is active; for A < 0 at most -A dual_clip, where that is given.

    No gradient passes where a bound is active.
    """
    plain_BT = -advantages_BT * ratio_BT
    bounded_BT = -advantages_BT * ratio_BT.clamp(1 - clips.clip_low, 1 + clips.clip_high)
    loss_BT, active_BT = torch.maximum(plain_BT, bounded_BT), bounded_BT > plain_BT
    if clips.dual_clip is not None:
        most_BT = -advantages_BT * clips.dual_clip
        too_much_BT = (advantages_BT < 0) & (loss_BT > most_BT)
        loss_BT, active_BT = torch.where(too_much_BT, most_BT, loss_BT), active_BT | too_much_BT
    return loss_BT, active_BT


def total(batch: Batch, spec: PolicyGradient, policy_BT: Tensor, active_BT: Tensor | None = None) -> LossOutput:
    """Return the weighted sum of a token loss, its off-policy correction, KL and entropy, with their metrics.

    The correction weighs the policy's term alone. Left out: an importance ratio on the KL estimate.
    """
    mask_BT, weights_BT = batch.weights_BT > 0, batch.weights_BT
    corrected_BT = weights_BT if batch.corrections_BT is None else weights_BT * batch.corrections_BT
    loss = (corrected_BT * policy_BT).sum()
    metrics: dict[str, Tensor] = {}
    if active_BT is not None:
        metrics["clip_fraction"] = (weights_BT * active_BT).sum().detach()
    if spec.kl_coef > 0:
        reference_BT = _reference(batch)
        if spec.kl != "k1_in_reward":
            kl_BT = {"k2": kl_k2, "k3": kl_k3, "k3_plus": kl_k3_plus}[spec.kl](batch.logprobs_BT, reference_BT, mask_BT)
            loss = loss + spec.kl_coef * (weights_BT * kl_BT).sum()
        k3_BT = kl_k3(batch.logprobs_BT.detach(), reference_BT, mask_BT)
        metrics["reference_kl_k3"] = (weights_BT * k3_BT).sum()
    if spec.entropy_coef != 0:
        assert batch.entropy_BT is not None, "entropy_coef needs entropies with a gradient"
        loss = loss - spec.entropy_coef * (weights_BT * torch.where(mask_BT, batch.entropy_BT, 0.0)).sum()
    return LossOutput(loss=loss, metrics=metrics)


def _reference(batch: Batch) -> Tensor:
    assert batch.reference_logprobs_BT is not None, "kl_coef > 0 needs reference logprobs"
    return batch.reference_logprobs_BT


def _difference(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return logprob - reference inside the mask, 0 outside; masked before subtracting, clamped to 20 nats."""
    zero = torch.zeros((), dtype=logprobs_BT.dtype, device=logprobs_BT.device)
    inside_BT = torch.where(mask_BT, logprobs_BT, zero) - torch.where(mask_BT, reference_BT, zero)
    return inside_BT.clamp(-20.0, 20.0)


def kl_k1(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return d = logprob - reference: unbiased for KL(policy || reference), of no use in a loss."""
    return _difference(logprobs_BT, reference_BT, mask_BT)


def kl_k2(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return d^2 / 2: its expected gradient is that of KL(policy || reference)."""
    return _difference(logprobs_BT, reference_BT, mask_BT).square() / 2


def kl_k3(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return exp(-d) - 1 + d: unbiased and never negative; its gradient is that of KL(reference || policy)."""
    d_BT = _difference(logprobs_BT, reference_BT, mask_BT)
    return (-d_BT).exp() - 1 + d_BT


def kl_k3_plus(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the value of k3 with the gradient of k2 (straight through)."""
    k2_BT = kl_k2(logprobs_BT, reference_BT, mask_BT)
    return kl_k3(logprobs_BT.detach(), reference_BT, mask_BT) + k2_BT - k2_BT.detach()


def row_means(values_BT: Tensor, mask_BT: Tensor, units_B: Tensor | None = None) -> Tensor:
    """Return (B, 1) means over the trained tokens of each trajectory; 0 where there is none.

    `units_B`: the trajectory of each row, where several rows may be of one.
    """
    sums_B, counts_B = torch.where(mask_BT, values_BT, 0.0).sum(-1), mask_BT.sum(-1)
    if units_B is not None:
        sums_B, counts_B = (torch.zeros_like(x).index_add(0, units_B, x)[units_B] for x in (sums_B, counts_B))
    return (sums_B / counts_B.clamp(min=1))[:, None]
