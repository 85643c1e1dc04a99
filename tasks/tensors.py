"""Batches and what losses return. B rows, T tokens, P pairs; shapes are in the suffix."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from torch import Tensor


@dataclass(slots=True)
class Batch:
    """Per-token tensors of one micro-batch, aligned: entry t belongs to the token at t.

    `weights_BT` is 0 where nothing trains and sums to 1 over the optimiser step (all its micro-batches).
    """

    logprobs_BT: Tensor
    """Trainer logprobs of the tokens, differentiable, at the sampling temperature."""
    weights_BT: Tensor
    sampler_logprobs_BT: Tensor | None = None
    """Behaviour logprobs, constant."""
    old_logprobs_BT: Tensor | None = None
    """Trainer logprobs before the first update of the step, constant."""
    reference_logprobs_BT: Tensor | None = None
    advantages_BT: Tensor | None = None
    corrections_BT: Tensor | None = None
    """Weights for the sampler's difference from the trainer, constant; the policy's term alone is multiplied by them."""
    teacher_logprobs_BT: Tensor | None = None
    """A teacher's logprobs of the tokens, constant; NaN where it says nothing."""
    entropy_BT: Tensor | None = None
    """Entropies; with a gradient only where the learner was asked for one."""
    preferred_B: Tensor | None = None
    """True for a trajectory that was chosen, False for one that was rejected."""
    pairs_P2: Tensor | None = None
    """Rows of the chosen and the rejected side of each pair."""
    baselines_B: Tensor | None = None
    """What a row's log-ratio is compared with, constant."""
    distill_weights_BT: Tensor | None = None
    """Weights of the distillation term: 0 where no teacher counts, summing to 1 over the optimiser step."""
    teacher_logprobs_MBT: Tensor | None = None
    """Teachers' logprobs of the tokens, NaN where a teacher says nothing; of a chunk the sum alone counts."""
    teacher_chunks_MBT: Tensor | None = None
    """Number of each token's chunk, -1 outside; where left out every token is a chunk."""
    teacher_weights_MB: Tensor | None = None
    distilled: Tensor | None = None
    """The weighted sum of divergences over a vocabulary, differentiable."""
    distill_figures: dict[str, Tensor] | None = None
    """Weighted sums beside it, constant."""
    lists_B: Tensor | None = None
    """Number of the list of candidates that a row is of."""
    targets_B: Tensor | None = None
    """Share of the row in its list's soft target, constant."""
    units_B: Tensor | None = None
    """Number of the trajectory that a row is of, where one may have several; each row is its own where left out."""
    fresh_B: Tensor | None = None
    """False for a row that the policy of this step did not write; all are fresh where left out."""

    def __post_init__(self) -> None:
        shape = self.logprobs_BT.shape
        for f in fields(self):
            value = getattr(self, f.name)
            axes = f.name.rpartition("_")[2]
            wanted = {"BT": tuple(shape), "B": (shape[0],), "P2": (len(value) if value is not None else 0, 2)}
            if value is not None and axes in wanted and tuple(value.shape) != wanted[axes]:
                raise ValueError(f"Batch.{f.name}: shape {tuple(value.shape)}, expected {wanted[axes]}")


@dataclass(slots=True)
class LossOutput:
    """A scalar to minimise and detached scalar metrics that add up over micro-batches."""

    loss: Tensor
    metrics: dict[str, Tensor]
    own: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Metrics of a term with a denominator of its own; they add up as they are."""


Loss = Callable[[Batch], LossOutput]


def token_weights(mask_BT: Tensor, aggregation: Literal["token", "sequence", "sequence_sum", "turn"] | int) -> Tensor:
    """Return weights that are 0 outside the mask and sum to 1 over it (formulas: token-mean, seq-mean-token-mean).

    `turn` is the mean over all turns of their means over tokens. Those of `sequence_sum` (the mean over rows of sums
    over tokens) sum to the mean length instead, and those of a number, a budget of tokens, to the trained share of
    rows x budget (Dr. GRPO): there every row counts. Elsewhere rows without a trained token count nowhere. All zeros
    where the mask is empty.
    """
    mask = mask_BT.to(torch.float32)
    if isinstance(aggregation, int):
        return mask / max(1, len(mask) * aggregation)
    per_row = mask.sum(-1, keepdim=True)
    if aggregation == "token":
        return mask / mask.sum().clamp(min=1)
    if aggregation == "turn":
        turns = turn_numbers(mask_BT)
        return mask / turn_sums(mask, turns).clamp(min=1) / (turns.amax(-1) + 1).sum().clamp(min=1)
    rows = (per_row > 0).sum().clamp(min=1)
    return mask / rows if aggregation == "sequence_sum" else mask / per_row.clamp(min=1) / rows


def turn_numbers(mask_BT: Tensor) -> Tensor:
    """Return the number of each token's turn in its row, from 0, and -1 outside: a turn is a run of trained tokens."""
    mask_BT = mask_BT.bool()
    before_BT = torch.nn.functional.pad(mask_BT, (1, 0))[:, :-1]
    return torch.where(mask_BT, (mask_BT & ~before_BT).cumsum(-1) - 1, -1)


def turn_sums(values_BT: Tensor, turns_BT: Tensor) -> Tensor:
    """Return at each token the sum over its turn; 0 outside."""
    inside_BT = turns_BT >= 0
    at_BT = turns_BT.clamp(min=0)
    kept_BT = torch.where(inside_BT, values_BT, 0.0)
    sums_BK = torch.zeros_like(kept_BT).scatter_add(-1, at_BT, kept_BT)
    return torch.where(inside_BT, sums_BK.gather(-1, at_BT), 0.0)


@dataclass(slots=True)
class PairTerms:
    """Both sides of each pair: summed logprobs, trained tokens, and the pair's weight, which sums to 1 over the step."""

    chosen_P: Tensor
    rejected_P: Tensor
    chosen_tokens_P: Tensor
    rejected_tokens_P: Tensor
    weights_P: Tensor

    def per_token(self) -> tuple[Tensor, Tensor]:
        """Return the mean over tokens of either side."""
        return self.chosen_P / self.chosen_tokens_P, self.rejected_P / self.rejected_tokens_P


def row_sums(values_BT: Tensor, weights_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return by row the sum of values where something trains, and how many tokens that are."""
    mask_BT = weights_BT > 0
    return torch.where(mask_BT, values_BT, 0.0).sum(-1), mask_BT.sum(-1)


def log_ratios(batch: Batch) -> Tensor:
    """Return logprob - reference, the reference being constant; 0 where nothing trains."""
    assert batch.reference_logprobs_BT is not None, "a log-ratio needs reference logprobs"
    mask_BT = batch.weights_BT > 0
    return torch.where(mask_BT, batch.logprobs_BT - batch.reference_logprobs_BT.detach(), 0.0)


def pair_terms(values_BT: Tensor, batch: Batch) -> PairTerms:
    """Return the sums of values over both sides of each pair. A pair weighs what its two rows weigh together."""
    assert batch.pairs_P2 is not None, "a loss on pairs needs to know them"
    sums_B, tokens_B = row_sums(values_BT, batch.weights_BT)
    shares_B = batch.weights_BT.sum(-1)
    chosen, rejected = batch.pairs_P2.unbind(-1)
    return PairTerms(
        chosen_P=sums_B[chosen],
        rejected_P=sums_B[rejected],
        chosen_tokens_P=tokens_B[chosen],
        rejected_tokens_P=tokens_B[rejected],
        weights_P=shares_B[chosen] + shares_B[rejected],
    )


def importance_ratio(logprobs_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return exp(logprob - old) inside the mask and 1 outside it; masked before exp, clamped to 20 nats."""
    difference = torch.where(mask_BT, logprobs_BT - old_BT, torch.zeros_like(logprobs_BT))
    return difference.clamp(-20.0, 20.0).exp()
