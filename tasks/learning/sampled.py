"""Distillation on the tokens that the policy sampled: the teacher's logprob against the policy's own, as an advantage.

    A_t = log p_T(y_t) - log pi(y_t), constant            k1: L = - sum w stop(r_t) A_t log pi(y_t), r = pi / sampler
                                                          k2: L = sum w A_t^2 / 2

Where tokens of teacher and policy differ, A is the difference on the finest pieces of text (chunks) that both share, given
to the policy's tokens by `spread`. Sources: Thinking Machines 2025 (on-policy distillation), MiMo-V2-Flash, arXiv:2601.02780
(several teachers with an outcome advantage), arXiv:2606.22600 (weights of early tokens). Left out: MiniLLM's exact
expectation over the first token.

M teachers, B rows, T tokens.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from specs.distillation import Distillation, SampledTokens
from tasks.tensors import Batch, LossOutput, importance_ratio, turn_sums

Spread = Literal["equal", "broadcast", "teacher_share", "last", "causal"]
FLOOR = -60.0
"""Logprobs of a teacher below this count as this."""


def sampled_loss(batch: Batch, spec: Distillation, outcome_coef: float = 0.0) -> LossOutput:
    """Return the weighted loss of the sampled tokens; `outcome_coef` x the batch's advantages is added to their own."""
    over, weights_BT = spec.over, batch.distill_weights_BT
    assert isinstance(over, SampledTokens), "a loss of sampled tokens"
    assert weights_BT is not None, "the term needs weights of its own"
    mask_BT = weights_BT > 0
    logprobs_BT = torch.where(mask_BT, batch.logprobs_BT, 0.0)
    gap_BT = gaps(batch, spec, over.spread)
    bounded_BT = gap_BT.clamp(-over.most, over.most)
    own = {"teacher_gap": -(weights_BT * gap_BT).sum(), "bounded": (weights_BT * (bounded_BT != gap_BT)).sum()}
    if over.estimator == "k2":  # (d - a)^2 / 2 with d = log pi and its slope -A: A is constant
        moved_BT = logprobs_BT - logprobs_BT.detach() - bounded_BT
        return LossOutput((weights_BT * moved_BT.square() / 2).sum(), {}, own)
    pieces_BT = pieces(batch) if over.spread == "last" else None
    advantages_BT = return_to_go(bounded_BT, mask_BT, over.discount, pieces_BT)
    if over.early_coef:
        advantages_BT = advantages_BT * early_weights(advantages_BT, mask_BT, over.early_coef)
    if outcome_coef:
        assert batch.advantages_BT is not None, "outcome_coef needs the verifiers' advantages"
        advantages_BT = advantages_BT + outcome_coef * torch.where(mask_BT, batch.advantages_BT, 0.0)
    ratio_BT = torch.ones_like(gap_BT)
    if batch.sampler_logprobs_BT is not None:
        ratio_BT = importance_ratio(logprobs_BT.detach(), batch.sampler_logprobs_BT, mask_BT)
    if over.ratio_band is not None:
        low, high = over.ratio_band
        inside_BT = (ratio_BT >= low) & (ratio_BT <= high)
        own["outside_band"] = (weights_BT * ~inside_BT).sum()
        ratio_BT = ratio_BT * inside_BT
    return LossOutput(-(weights_BT * ratio_BT * advantages_BT * logprobs_BT).sum(), {}, own)


def gaps(batch: Batch, spec: Distillation, mode: Spread) -> Tensor:
    """Return at each token teacher - policy logprob, of all teachers together; 0 where none counts. Constant.

    A chunk's difference is of all its tokens, those too that weigh nothing in the term.
    """
    said_MBT, asked_MB = batch.teacher_logprobs_MBT, batch.teacher_weights_MB
    assert said_MBT is not None, "teachers were not asked"
    assert asked_MB is not None, "teachers have no weights"
    mask_BT = batch.weights_BT > 0
    policy_BT = torch.where(mask_BT, batch.logprobs_BT.detach(), 0.0)
    given_MBT = said_MBT.isfinite() & mask_BT & (asked_MB > 0)[:, :, None]
    gap_MBT = torch.where(given_MBT, said_MBT.clamp(min=FLOOR), 0.0) - torch.where(given_MBT, policy_BT, 0.0)
    if batch.teacher_chunks_MBT is not None:
        pairs = zip(said_MBT, batch.teacher_chunks_MBT, given_MBT, strict=True)
        gap_MBT = torch.stack([spread(t.clamp(min=FLOOR), policy_BT, c.where(g, -1), mode) for t, c, g in pairs])
    weights_MBT = torch.where(given_MBT, asked_MB[:, :, None], 0.0)
    weights_MBT = weights_MBT / weights_MBT.sum(0).clamp(min=1e-12)
    if spec.combine == "mixture" and len(said_MBT) > 1:
        mixed_BT = (weights_MBT.log() + gap_MBT).logsumexp(0)
        return torch.where(given_MBT.any(0), mixed_BT, 0.0)
    return (weights_MBT * gap_MBT).sum(0)


def spread(teacher_BT: Tensor, policy_BT: Tensor, chunks_BT: Tensor, mode: Spread) -> Tensor:
    """Return advantages of the tokens from the difference D = L_T - L_S of their chunk; 0 outside chunks (-1).

    `equal` D / tokens; `broadcast` D; `last` D, earned by the last token and returned whole to those before it (see
    `return_to_go`); `teacher_share` L_T / tokens - own logprob; `causal` L_T less the logprobs of the token and those after
    it in the chunk.
    """
    inside_BT = chunks_BT >= 0
    teacher_BT, policy_BT = (torch.where(inside_BT, x, 0.0) for x in (teacher_BT, policy_BT))
    told_BT, said_BT = turn_sums(teacher_BT, chunks_BT), turn_sums(policy_BT, chunks_BT)
    count_BT = turn_sums(torch.ones_like(policy_BT), chunks_BT).clamp(min=1)
    match mode:
        case "equal":
            return (told_BT - said_BT) / count_BT
        case "broadcast" | "last":
            return told_BT - said_BT
        case "teacher_share":
            return torch.where(inside_BT, told_BT / count_BT - policy_BT, 0.0)
        case "causal":
            starts_BT = inside_BT & (chunks_BT != functional.pad(chunks_BT, (1, 0), value=-2)[:, :-1])
            before_BT = policy_BT.cumsum(-1) - policy_BT
            earlier_BT = before_BT - turn_sums(torch.where(starts_BT, before_BT, 0.0), chunks_BT)
            return torch.where(inside_BT, told_BT - (said_BT - earlier_BT), 0.0)


def pieces(batch: Batch) -> Tensor:
    """Return the number of each token's piece: pieces end where tokens of the policy and of all its teachers end together."""
    chunks_MBT, asked_MB = batch.teacher_chunks_MBT, batch.teacher_weights_MB
    if chunks_MBT is None or asked_MB is None:
        return torch.ones_like(batch.weights_BT, dtype=torch.long).cumsum(-1)
    before_MBT = functional.pad(chunks_MBT, (1, 0), value=-1)[:, :, :-1]
    joined_MBT = (chunks_MBT >= 0) & (chunks_MBT == before_MBT) & (asked_MB > 0)[:, :, None]
    return (~joined_MBT.any(0)).cumsum(-1)


def return_to_go(values_BT: Tensor, mask_BT: Tensor, discount: float, pieces_BT: Tensor | None = None) -> Tensor:
    """Return each token's value plus `discount` x that of the row's next token inside the mask, and so on.

    With pieces what comes after one is added to each of its tokens: its own value, that of its first token, counts once.
    """
    if discount == 0:
        return values_BT
    if pieces_BT is None:
        pieces_BT = torch.ones_like(mask_BT, dtype=torch.long).cumsum(-1)
    found_B = after_B = torch.zeros_like(values_BT[:, 0])
    piece_B, columns = torch.zeros_like(pieces_BT[:, 0]), list[Tensor]()
    for t in range(values_BT.shape[1] - 1, -1, -1):
        inside_B = mask_BT[:, t]
        after_B = torch.where(inside_B & (pieces_BT[:, t] != piece_B), discount * found_B, after_B)
        found_B = torch.where(inside_B, values_BT[:, t] + after_B, found_B)
        piece_B = torch.where(inside_B, pieces_BT[:, t], piece_B)
        columns.append(torch.where(inside_B, found_B, 0.0))
    return torch.stack(columns[::-1], 1)


def early_weights(advantages_BT: Tensor, mask_BT: Tensor, coef: float) -> Tensor:
    """Return 1 + coef x the share of the row's |advantage| that stands at the token or after it."""
    sizes_BT = torch.where(mask_BT, advantages_BT.abs(), 0.0)
    before_BT = sizes_BT.cumsum(-1) - sizes_BT
    total_B1 = sizes_BT.sum(-1, keepdim=True).clamp(min=1e-12)
    return 1 + coef * (1 - before_BT / total_B1)
