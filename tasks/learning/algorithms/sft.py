"""SFT: maximum likelihood of the policy's tokens in demonstrations.

L = -sum_it w_it log pi(y_it), with w summing to 1 over the optimiser step (token mean or sequence mean).
Left out: loss on observations, per-token weights, label smoothing. B rows, T tokens.
"""

import torch

from specs.supervised import SFT
from tasks.tensors import Batch, LossOutput


def loss(batch: Batch, spec: SFT) -> LossOutput:
    """Return the weighted negative log-likelihood; the denominator is `weights_BT`, which `spec.aggregation` made."""
    kept_BT = torch.where(batch.weights_BT > 0, batch.logprobs_BT, 0.0)
    return LossOutput(loss=-(batch.weights_BT * kept_BT).sum(), metrics={})
