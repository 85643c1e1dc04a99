"""Off-policy correction: constant weights for the trainer's logprobs before the update against the sampler's.

rho = exp(trainer - sampler). Truncated importance sampling (TIS) min(rho, high); masked (MIS) and IcePop (Ring-1T,
arXiv:2510.18855): rho inside [low, high], else 0; by token, or by trajectory with the product of its ratios.
A weight of zero keeps its token in the mean; a rejected trajectory leaves it. Bounds belong to the band.
B trajectories, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specs.policy_gradient import Correction
from tasks.learning.rows import TrainingRow
from tasks.learning.surrogate import row_means


def log_ratios(trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return trainer - sampler inside the mask and 0 outside; masked before subtracting, clamped to 20 nats."""
    inside_BT = torch.where(mask_BT, trainer_BT, 0.0) - torch.where(mask_BT, sampler_BT, 0.0)
    return inside_BT.clamp(-20.0, 20.0)


def sequence_ratio(d_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return (B, 1) products of the ratios of each trajectory."""
    return torch.where(mask_BT, d_BT, 0.0).sum(-1, keepdim=True).clamp(-20.0, 20.0).exp()


def geometric_ratio(d_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return (B, 1) geometric means of the ratios of each trajectory."""
    return row_means(d_BT, mask_BT).exp()


def correction_weights(d_BT: Tensor, mask_BT: Tensor, spec: Correction, counted_BT: Tensor | None = None) -> Tensor:
    """Return the constant weight of each token, 0 outside the mask. `counted_BT`: the tokens a mean weight is over, where not all."""
    ratio_BT = d_BT.exp() if spec.ratio == "token" else sequence_ratio(d_BT, mask_BT).expand_as(d_BT)
    low, high = spec.band
    if spec.outside == "truncate":
        weights_BT = ratio_BT.clamp(max=high)
    else:
        weights_BT = torch.where((ratio_BT >= low) & (ratio_BT <= high), ratio_BT, 0.0)
    weights_BT = torch.where(mask_BT, weights_BT, 0.0)
    if spec.normalize:
        counted_BT = mask_BT if counted_BT is None else mask_BT & counted_BT
        mean = torch.where(counted_BT, weights_BT, 0.0).sum() / counted_BT.sum().clamp(min=1)
        weights_BT = weights_BT / mean if mean > 0 else weights_BT
    return weights_BT


def rejected(d_BT: Tensor, mask_BT: Tensor, advantages_B: Tensor, spec: Correction) -> dict[str, Tensor]:
    """Return by rule which trajectories leave the mean."""
    found: dict[str, Tensor] = {}
    if spec.reject_mean is not None:
        mean_B = geometric_ratio(d_BT, mask_BT)[:, 0]
        found["outside_reject_mean"] = (mean_B < spec.reject_mean[0]) | (mean_B > spec.reject_mean[1])
    if spec.reject_below is not None:
        least_B = torch.where(mask_BT, d_BT.exp(), torch.inf).amin(-1)
        found["reject_below"] = least_B < spec.reject_below
    if spec.reject_drifted is not None:
        lost_B = -row_means(d_BT, mask_BT)[:, 0]
        found["reject_drifted"] = (advantages_B < 0) & (lost_B > spec.reject_drifted)
    return found


def mismatch(d_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Return how far trainer and sampler are apart, over trained tokens; k3 is the main gauge."""
    d_N = d_BT[mask_BT]
    if not len(d_N):
        return {}
    ratio_N = d_N.exp()
    return {
        "mismatch_k1": float(-d_N.mean()),
        "mismatch_k3": float((ratio_N - 1 - d_N).mean()),
        "mismatch_chi2": float(ratio_N.square().mean() - 1),
        "mismatch_mean": float(d_N.abs().mean()),
        "mismatch_max": float(d_N.abs().max()),
    }


def effective_share(weights_BT: Tensor, mask_BT: Tensor) -> float:
    """Return the effective share of tokens under these weights: (sum w)^2 / (n sum w^2)."""
    weights_N = weights_BT[mask_BT]
    squared = float(weights_N.square().sum())
    return float(weights_N.sum()) ** 2 / (len(weights_N) * squared) if squared else 0.0


def staleness(current: int, oldest: Sequence[int], max_lag: int, decay: float) -> list[tuple[int, float | None]]:
    """Return by trajectory its lag and decay ** lag, None where the lag is above the bound.

    The lag counts from the oldest version that wrote a token. The synchronous loop has no lag; this is for a loop that
    trains on trajectories of earlier versions.
    """
    lags = [current - version for version in oldest]
    return [(lag, decay**lag if lag <= max_lag else None) for lag in lags]


@dataclass(slots=True)
class Corrected:
    """Rows with their constant weights, what was rejected by rule, and the figures of the step."""

    rows: list[TrainingRow]
    rejected: dict[str, int]
    figures: dict[str, float]


def correct(rows: Sequence[TrainingRow], trainer: Sequence[list[float]], spec: Correction) -> Corrected:
    """Set `old_logprobs` and `corrections` of the rows; return those that stay in the mean.

    The rows of one trajectory are judged and rejected together.
    """
    if not rows:
        return Corrected([], {}, {})
    at, (lines, columns) = places(rows)
    mask_BT = torch.zeros(lines, columns, dtype=torch.bool)
    d_BT = torch.zeros(lines, columns, dtype=torch.float64)
    advantages_B, silent_B = torch.zeros(lines), torch.zeros(lines, dtype=torch.bool)
    for row, values, (b, start) in zip(rows, trainer, at, strict=True):
        assert row.sampler_logprobs is not None, "a correction needs sampler logprobs"
        row.old_logprobs = values
        end = start + len(row.ids)
        mask_BT[b, start:end] = torch.tensor(row.mask)
        d_BT[b, start:end] = torch.tensor(values, dtype=torch.float64) - torch.tensor(
            row.sampler_logprobs, dtype=torch.float64
        )
        advantages_B[b], silent_B[b] = row.advantage, row.silent
    d_BT = log_ratios(d_BT, torch.zeros_like(d_BT), mask_BT)
    out = rejected(d_BT, mask_BT, advantages_B, spec)
    gone_B = torch.stack(list(out.values())).any(0) if out else torch.zeros(lines, dtype=torch.bool)
    kept_BT = mask_BT & ~gone_B[:, None]
    weights_BT = correction_weights(d_BT, kept_BT, spec, ~silent_B[:, None])
    by_line = weights_BT.tolist()
    for row, (b, start) in zip(rows, at, strict=True):
        row.corrections = by_line[b][start : start + len(row.ids)]
    figures = mismatch(d_BT, mask_BT) | {
        "correction_ess": effective_share(weights_BT, kept_BT),
        "correction_zero": float((weights_BT[kept_BT] == 0).double().mean()) if bool(kept_BT.any()) else 0.0,
        "rejected": float(gone_B.double().mean()),
    }
    gone = gone_B.tolist()
    kept = [row for row, (b, _) in zip(rows, at, strict=True) if not gone[b]]
    return Corrected(kept, {name: int(which.sum()) for name, which in out.items() if which.any()}, figures)


def places(rows: Sequence[TrainingRow]) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Return where each row stands, (trajectory, first column), one behind the other, and the shape of it all."""
    lines: dict[str, int] = {}
    ends: list[int] = []
    found: list[tuple[int, int]] = []
    for i, row in enumerate(rows):
        b = lines.setdefault(row.trajectory or f"row {i}", len(ends))
        if b == len(ends):
            ends.append(0)
        found.append((b, ends[b]))
        ends[b] += len(row.ids)
    return found, (len(ends), max(ends))
