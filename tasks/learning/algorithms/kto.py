"""KTO: Kahneman-Tversky optimisation on single trajectories that are desirable or not (arXiv:2402.01306).

h = log pi(y) - log reference(y), summed over trained tokens; z = max(0, mean over the step of h on mismatched prompts
and completions), constant, `baselines_B`.
L = sum_i w_i v_i, v = desirable_weight (1 - s(beta (h - z))) or undesirable_weight (1 - s(beta (z - h))).
z is of the whole step, however it is split into forward passes, and is estimated with the weights before the step.
The mismatched completion of a trajectory is that of one of another problem, as desirable as it is itself, so that z is of
both sides evenly. B rows, T tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specs.preference import KTO
from tasks.tensors import Batch, LossOutput, log_ratios, row_sums


def baseline(mismatched: Sequence[float]) -> float:
    """Return z: the mean log-ratio of mismatched pairs, 0 where it is negative or there is none."""
    return max(0.0, sum(mismatched) / len(mismatched)) if mismatched else 0.0


def losses(ratio_B: Tensor, preferred_B: Tensor, z_B: Tensor, spec: KTO) -> Tensor:
    """Return each trajectory's loss."""
    gain_B = torch.where(preferred_B, ratio_B - z_B, z_B - ratio_B)
    weight_B = torch.where(preferred_B, spec.desirable_weight, spec.undesirable_weight)
    return weight_B * torch.sigmoid(-spec.beta * gain_B)


def loss(batch: Batch, spec: KTO) -> LossOutput:
    """Return the weighted losses; needs reference logprobs, baselines, and which rows are preferred."""
    assert batch.preferred_B is not None, "KTO needs to know which trajectories are desirable"
    assert batch.baselines_B is not None, "KTO needs the baseline of the step"
    shares_B = batch.weights_BT.sum(-1)
    ratio_B, _ = row_sums(log_ratios(batch), batch.weights_BT)
    loss_B = losses(ratio_B, batch.preferred_B, batch.baselines_B, spec)
    good_B, bad_B = shares_B * batch.preferred_B, shares_B * ~batch.preferred_B
    metrics = {
        "baseline": (shares_B * batch.baselines_B).sum().detach(),
        "accuracy": (good_B * (ratio_B > batch.baselines_B) + bad_B * (ratio_B < batch.baselines_B)).sum().detach(),
        "chosen_shift": 2 * (good_B * ratio_B).sum().detach(),
        "rejected_shift": 2 * (bad_B * ratio_B).sum().detach(),
    }
    return LossOutput(loss=(shares_B * loss_B).sum(), metrics=metrics)
