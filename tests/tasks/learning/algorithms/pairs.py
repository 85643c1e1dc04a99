"""Batches of pairs for tests of losses: rows 2k and 2k + 1 are the chosen and the rejected side of pair k."""

import torch

from tasks.tensors import Batch


def pair_batch(sides, reference=None, *, weights=None, dtype=torch.float64):
    """Return the logprobs, which want gradients, and a batch; a side is its list of logprobs."""
    width = max(len(s) for s in sides)

    def padded(rows):
        return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=dtype)

    logprobs = padded(sides).requires_grad_()
    mask = padded([[1.0] * len(s) for s in sides]) > 0
    count = len(sides)
    rows = torch.tensor(weights or [1.0] * (count // 2), dtype=dtype).repeat_interleave(2)[:, None]
    shares = mask.to(dtype) / mask.sum(-1, keepdim=True) * rows / rows.sum()
    batch = Batch(
        logprobs,
        shares,
        reference_logprobs_BT=None if reference is None else padded(reference),
        preferred_B=torch.arange(count) % 2 == 0,
        pairs_P2=torch.arange(count).view(-1, 2),
        baselines_B=torch.zeros(count, dtype=dtype),
    )
    return logprobs, batch


def even(total, tokens):
    """Return that many equal logprobs with that sum."""
    return [total / tokens] * tokens


def slopes(values):
    """Return the gradient that a backward pass left."""
    assert values.grad is not None
    return values.grad


WORKED = ([even(-20.0, 10), even(-27.0, 12)], [even(-21.0, 10), even(-26.0, 12)])
"""Policy and reference of one pair."""
