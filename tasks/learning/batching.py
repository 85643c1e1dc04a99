"""What a step's rows become for a forward pass: weights of tokens, the batch that losses read, and figures of it.

B rows of a micro-batch, T their padded length, N trained tokens.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tasks.learning.microbatches import MicroBatch
from tasks.learning.rows import TrainingRow
from tasks.learning.teaching import teacher_columns
from tasks.tensors import Batch, token_weights

Aggregation = Literal["token", "sequence", "sequence_sum", "turn", "absolute_token", "absolute_sequence"]
"""Mean over tokens; over rows of their mean, or of their sum; over turns of their mean; over tokens or rows, the rows' own
weights taken as they are."""
Mean = Aggregation | int
"""How tokens become one number; a number of tokens is a fixed budget that each row is divided by."""


def row_weights(rows: Sequence[TrainingRow], aggregation: Mean) -> Tensor:
    """Return per-token weights (rows, longest row); all zeros where nothing trains.

    Those of `token`, `sequence` and `turn` sum to 1 over the step. Elsewhere the rows' own weights stand in no denominator.
    Where rows are counted, those of one trajectory count as one together.
    """
    if not rows:
        return torch.zeros(0, 0)
    mask = torch.zeros(len(rows), max(len(r.ids) for r in rows), dtype=torch.bool)
    for i, row in enumerate(rows):
        mask[i, : len(row.mask)] = torch.tensor(row.mask)
    match aggregation:
        case "absolute_token":
            weights = token_weights(mask, "token")
        case "absolute_sequence":
            weights = token_weights(mask, "sequence")
        case _:
            weights = token_weights(mask, aggregation)
    if all(row.weight == 1.0 and row.contexts == 1 for row in rows):
        return weights
    weights = weights * torch.tensor([row.weight for row in rows])[:, None]
    if aggregation in ("sequence", "absolute_sequence"):
        weights = weights * torch.tensor([1 / row.contexts for row in rows])[:, None]
    if aggregation in ("sequence_sum", "absolute_sequence") or isinstance(aggregation, int):
        counted = [row for row in rows if isinstance(aggregation, int) or row.trained]
        weights = weights * len(counted) / max(1e-9, sum(1 / row.contexts for row in counted))
    if aggregation not in ("token", "sequence", "turn"):
        return weights
    return weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def batch_of(
    rows: Sequence[TrainingRow], micro: MicroBatch, weights: Tensor, logprobs_N: Tensor, entropy_N: Tensor
) -> Batch:
    """Return what a loss reads of a forward pass."""
    device, columns = logprobs_N.device, micro.shape[1]
    chosen = [rows[i] for i in micro.rows]

    def column(values: list[list[float] | None]) -> Tensor | None:
        if any(v is None for v in values):
            return None
        filled = [padded(v or [], columns) for v in values]
        return torch.tensor(filled, dtype=torch.float32, device=device)

    advantages = torch.tensor([r.advantage for r in chosen], device=device)[:, None].expand(micro.shape)
    by_token = column([r.advantages for r in chosen])
    said = teacher_columns(chosen, columns, device)
    listed = any(r.target is not None for r in chosen)
    paired = any(r.pair for r in chosen) and not listed
    labelled = paired or any(r.alone for r in chosen)
    return Batch(
        logprobs_BT=spread(logprobs_N, micro),
        weights_BT=weights[micro.rows, :columns].to(device),
        sampler_logprobs_BT=column([r.sampler_logprobs for r in chosen]),
        old_logprobs_BT=column([r.old_logprobs for r in chosen]),
        reference_logprobs_BT=column([r.reference_logprobs for r in chosen]),
        advantages_BT=advantages if by_token is None else by_token,
        corrections_BT=column([r.corrections for r in chosen]),
        teacher_logprobs_BT=column([r.teacher_logprobs for r in chosen]),
        entropy_BT=spread(entropy_N, micro),
        preferred_B=torch.tensor([r.preferred for r in chosen], device=device) if labelled else None,
        pairs_P2=_pairs(chosen).to(device) if paired else None,
        baselines_B=torch.tensor([r.baseline for r in chosen], device=device) if labelled else None,
        distill_weights_BT=column([r.distill for r in chosen]),
        teacher_logprobs_MBT=said[0],
        teacher_chunks_MBT=said[1],
        teacher_weights_MB=said[2],
        lists_B=_lists(chosen).to(device) if listed else None,
        targets_B=torch.tensor([r.target or 0.0 for r in chosen], device=device) if listed else None,
        units_B=_units(chosen).to(device) if any(r.unit for r in chosen) else None,
        fresh_B=torch.tensor([not r.stale for r in chosen], device=device) if any(r.stale for r in chosen) else None,
    )


def _units(chosen: Sequence[TrainingRow]) -> Tensor:
    """Return the number of each row's unit; a row without one is its own."""
    numbers: dict[object, int] = {}
    named = [row.unit or b for b, row in enumerate(chosen)]
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in named], dtype=torch.long)


def _lists(chosen: Sequence[TrainingRow]) -> Tensor:
    """Return the number of each row's list; the rows of a list stand in one forward pass."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(row.pair, len(numbers)) for row in chosen], dtype=torch.long)


def _pairs(chosen: Sequence[TrainingRow]) -> Tensor:
    """Return (P, 2): the rows of the preferred and the rejected side of each pair."""
    sides: dict[str, list[int]] = {}
    for b, row in enumerate(chosen):
        sides.setdefault(row.pair, [-1, -1])[0 if row.preferred else 1] = b
    assert all(min(pair) >= 0 for pair in sides.values()), "a pair needs both its sides in one forward pass"
    return torch.tensor(list(sides.values()), dtype=torch.long).view(-1, 2)


def spread(values_N: Tensor, micro: MicroBatch) -> Tensor:
    """Return (B, T) with the values in their cells and 0 elsewhere."""
    rows, columns = micro.shape
    flat = torch.zeros(rows * columns, dtype=values_N.dtype, device=values_N.device)
    return flat.index_put((micro.cells_N.to(values_N.device),), values_N).view(rows, columns)


def padded(values: list[float], length: int) -> list[float]:
    """Return values cut or filled with 0.0 to a length."""
    return values[:length] + [0.0] * (length - len(values))


def by_row(micro: MicroBatch, values_BT: Tensor) -> dict[int, list[float]]:
    """Return what belongs to each of the step's rows."""
    return dict(zip(micro.rows, values_BT.tolist(), strict=True))


@torch.no_grad()
def drift(batch: Batch) -> dict[str, Tensor]:
    """Return sums over trained tokens: entropy and, of fresh rows, what separates trainer's and sampler's logprobs."""
    mask_BT = batch.weights_BT > 0
    sums: dict[str, Tensor] = {}
    if batch.entropy_BT is not None:
        sums["entropy"] = batch.entropy_BT.detach().sum()
    if batch.sampler_logprobs_BT is not None:
        if batch.fresh_B is not None:
            mask_BT = mask_BT & batch.fresh_B[:, None]
        d_BT = torch.where(mask_BT, batch.logprobs_BT - batch.sampler_logprobs_BT, 0.0).clamp(-20.0, 20.0)
        ratio_BT = torch.where(mask_BT, d_BT.exp(), 0.0)
        sums["_fresh"] = mask_BT.sum()
        sums["logprob_gap"] = d_BT.abs().sum()
        sums["sampler_kl_k3"] = (torch.where(mask_BT, d_BT.exp() - 1, 0.0) - d_BT).sum()
        sums["_ratio"] = ratio_BT.sum()
        sums["_ratio_squared"] = (ratio_BT * ratio_BT).sum()
    return sums


@torch.no_grad()
def cost(batch: Batch) -> dict[str, Tensor]:
    """Return weighted sums of minus the logprobs, and of the weights: of what is to become likelier, and of what is not.

    Of pairs and labelled trajectories those are the two sides; in a list each candidate counts by its share of the target.
    """
    shares_BT = batch.weights_BT if batch.targets_B is None else batch.weights_BT * batch.targets_B[:, None]
    costs_BT = torch.where(shares_BT > 0, -shares_BT * batch.logprobs_BT, 0.0)
    if batch.preferred_B is None:
        return {"_cost": costs_BT.sum(), "_cost_weight": shares_BT.sum()}
    wanted_B = batch.preferred_B
    return {
        "_cost": costs_BT[wanted_B].sum(),
        "_cost_weight": shares_BT[wanted_B].sum(),
        "_rejected_cost": costs_BT[~wanted_B].sum(),
        "_rejected_cost_weight": shares_BT[~wanted_B].sum(),
    }


def finish(sums: dict[str, float], tokens: int) -> dict[str, float]:
    """Turn sums over tokens into means; `ess` is the effective share of tokens under the ratio to the sampler."""
    count = max(1, tokens)
    if "entropy" in sums:
        sums["entropy"] /= count
    count = max(1.0, sums.pop("_fresh", count))
    for name in ("logprob_gap", "sampler_kl_k3"):
        if name in sums:
            sums[name] /= count
    ratio, squared = sums.pop("_ratio", None), sums.pop("_ratio_squared", None)
    if ratio is not None and squared:
        sums["ess"] = ratio * ratio / (squared * count)
    return sums
