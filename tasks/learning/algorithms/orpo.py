"""ORPO: odds-ratio preference optimisation without a reference (arXiv:2403.07691).

m = mean log pi(token) of a side, logit(m) = m - log(1 - e^m), O = logit(m_chosen) - logit(m_rejected).
L = sum_p w_p [ -m_chosen - odds_coef log s(O) ], s the logistic function.
The likelihood is over the chosen side's trained tokens; some implementations add the prompt's. m is held below -1e-6,
where 1 - e^m would vanish. Left out: nothing. B rows, T tokens, P pairs.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from specs.preference import ORPO
from tasks.tensors import Batch, LossOutput, pair_terms

HIGHEST = -1e-6
"""Largest mean logprob that has odds."""


def log_odds(mean_P: Tensor) -> Tensor:
    """Return m - log(1 - e^m), stable at both ends."""
    m_P = mean_P.clamp(max=HIGHEST)
    near_P = (-torch.expm1(m_P)).log()
    far_P = torch.log1p(-m_P.exp())
    return m_P - torch.where(m_P > -math.log(2), near_P, far_P)


def loss(batch: Batch, spec: ORPO) -> LossOutput:
    """Return the likelihood of the chosen side and the weighted odds term; needs pairs."""
    pairs = pair_terms(batch.logprobs_BT, batch)
    chosen_P, rejected_P = pairs.per_token()
    ratio_P = log_odds(chosen_P) - log_odds(rejected_P)
    odds_P = -logsigmoid(ratio_P)
    metrics = {
        "accuracy": (pairs.weights_P * (ratio_P > 0)).sum().detach(),
        "log_odds_ratio": (pairs.weights_P * ratio_P).sum().detach(),
        "odds_loss": (pairs.weights_P * odds_P).sum().detach(),
        "chosen_nll": -(pairs.weights_P * chosen_P).sum().detach(),
    }
    return LossOutput(loss=(pairs.weights_P * (spec.odds_coef * odds_P - chosen_P)).sum(), metrics=metrics)
