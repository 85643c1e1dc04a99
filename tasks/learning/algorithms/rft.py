"""RFT: maximum likelihood of the policy's own verified trajectories (RAFT, arXiv:2304.06767; RFT, arXiv:2308.01825).

L = -sum_it w_it log pi(y_it) over selected trajectories, at temperature 1 whatever they were drawn at: they are
examples now and no longer samples. What is selected is decided before, from rewards (`tasks/loops/selection.py`).
Left out: weights by reward, importance weights. B rows, T tokens.
"""

import torch

from specs.supervised import RFT
from tasks.tensors import Batch, LossOutput


def loss(batch: Batch, spec: RFT) -> LossOutput:
    """Return the weighted negative log-likelihood; the denominator is `weights_BT`, which `spec.aggregation` made."""
    kept_BT = torch.where(batch.weights_BT > 0, batch.logprobs_BT, 0.0)
    return LossOutput(loss=-(batch.weights_BT * kept_BT).sum(), metrics={})
