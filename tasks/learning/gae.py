"""Generalised advantage estimation over the policy's own tokens (arXiv:1506.02438).

delta_t = r_t + discount V_{t+1} - V_t; A_t = delta_t + discount lambda A_{t+1}; return_t = A_t + V_t. What the policy did
not write is skipped: the last token of a turn is followed by the first of the next turn. The value after the last token
is 0, as the reward there is final (a cut trajectory has been judged too). B trajectories, T tokens.
"""

import torch
from torch import Tensor


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, discount: float, lambda_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns, 0 outside the mask."""
    advantages_BT, returns_BT = torch.zeros_like(values_BT), torch.zeros_like(values_BT)
    following_B, carried_B = torch.zeros_like(values_BT[:, 0]), torch.zeros_like(values_BT[:, 0])
    for t in range(values_BT.shape[1] - 1, -1, -1):
        inside_B = mask_BT[:, t]
        value_B = torch.where(inside_B, values_BT[:, t], 0.0)
        delta_B = torch.where(inside_B, rewards_BT[:, t], 0.0) + discount * following_B - value_B
        carried_B = torch.where(inside_B, delta_B + discount * lambda_B * carried_B, carried_B)
        following_B = torch.where(inside_B, value_B, following_B)
        advantages_BT[:, t] = torch.where(inside_B, carried_B, 0.0)
        returns_BT[:, t] = torch.where(inside_B, carried_B + value_B, 0.0)
    return advantages_BT, returns_BT


def adaptive_lambda(mask_BT: Tensor, alpha: float) -> Tensor:
    """Return 1 - 1 / (alpha x trained tokens) of each trajectory, at least 0 (VAPO, arXiv:2504.05118)."""
    return (1 - 1 / (alpha * mask_BT.sum(-1).clamp(min=1).double())).clamp(min=0.0)


def whitened(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return advantages with a mean of 0 and a sample variance of 1 over the mask; as they are where it has one token."""
    inside_N = advantages_BT[mask_BT]
    if len(inside_N) < 2:
        return advantages_BT
    scaled_BT = (advantages_BT - inside_N.mean()) / (inside_N.var() + 1e-8).sqrt()
    return torch.where(mask_BT, scaled_BT, 0.0)


def value_losses(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, clip: float | None) -> Tensor:
    """Return half the squared error, the larger of that of the value and of the value moved by at most `clip`."""
    squared_BT = (values_BT - returns_BT).square()
    if clip is not None:
        bounded_BT = old_BT + (values_BT - old_BT).clamp(-clip, clip)
        squared_BT = torch.maximum(squared_BT, (bounded_BT - returns_BT).square())
    return squared_BT / 2
