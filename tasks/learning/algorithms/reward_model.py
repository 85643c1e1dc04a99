"""Reward models: Bradley-Terry on pairs, or the labels of turns.

Pairs: L = mean [-log sigmoid(r+ - r- - m) + c (r+ + r-)^2] (Bradley and Terry 1952; margin as in arXiv:2307.09288; the
centring term of arXiv:2312.09244). Turns: L = mean [-y log sigmoid(v) - (1 - y) log sigmoid(-v)] (arXiv:2305.20050 with
soft labels). Left out: ensembles. A batch has numbers for logprobs, and labels for advantages.
B rows, T tokens, P pairs.
"""

import torch
from torch.nn import functional

from specs.reward_models import RewardModel
from tasks.tensors import Batch, LossOutput, pair_terms


def loss(batch: Batch, spec: RewardModel) -> LossOutput:
    """Return the loss of what the model learns, and its figures."""
    return _pairs(batch, spec) if spec.learns == "pairs" else _turns(batch)


def _pairs(batch: Batch, spec: RewardModel) -> LossOutput:
    terms = pair_terms(batch.logprobs_BT, batch)
    ahead_P = terms.chosen_P - terms.rejected_P
    asked_P = torch.zeros_like(ahead_P)
    if spec.use_margin == "reward":
        assert batch.pairs_P2 is not None, "a loss on pairs needs to know them"
        assert batch.baselines_B is not None, "the margin stands in the rows' baselines"
        asked_P = batch.baselines_B[batch.pairs_P2[:, 0]]
    centre_P = (terms.chosen_P + terms.rejected_P) ** 2
    losses_P = functional.softplus(asked_P - ahead_P) + spec.center_coef * centre_P
    weights_P = terms.weights_P
    return LossOutput(
        loss=(weights_P * losses_P).sum(),
        metrics={
            "accuracy": (weights_P * (ahead_P > 0)).sum().detach(),
            "margin": (weights_P * ahead_P).sum().detach(),
        },
    )


def _turns(batch: Batch) -> LossOutput:
    assert batch.advantages_BT is not None, "a turn needs its label"
    mask_BT = batch.weights_BT > 0
    values_BT = torch.where(mask_BT, batch.logprobs_BT, 0.0)
    labels_BT = torch.where(mask_BT, batch.advantages_BT, 0.0)
    losses_BT = functional.binary_cross_entropy_with_logits(values_BT, labels_BT, reduction="none")
    return LossOutput(
        loss=(batch.weights_BT * losses_BT).sum(),
        metrics={"label": (batch.weights_BT * labels_BT).sum().detach()},
    )
