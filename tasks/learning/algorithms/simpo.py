"""SimPO: preference optimisation by mean logprobs, without a reference (arXiv:2405.14734).

L = -sum_p w_p log s(beta (m_chosen - m_rejected - gamma_over_beta)), m = mean log pi(token) of a side, s the logistic
function; the paper's gamma is beta times gamma_over_beta. Left out: nothing. B rows, T tokens, P pairs.
"""

from torch.nn.functional import logsigmoid

from specs.preference import SimPO
from tasks.tensors import Batch, LossOutput, pair_terms


def loss(batch: Batch, spec: SimPO) -> LossOutput:
    """Return the logistic loss of the mean logprobs beyond the margin; needs pairs."""
    pairs = pair_terms(batch.logprobs_BT, batch)
    chosen_P, rejected_P = pairs.per_token()
    margin_P = chosen_P - rejected_P
    loss_P = -logsigmoid(spec.beta * (margin_P - spec.gamma_over_beta))
    metrics = {
        "accuracy": (pairs.weights_P * (margin_P > 0)).sum().detach(),
        "margin": (pairs.weights_P * margin_P).sum().detach(),
        "chosen_nll": -(pairs.weights_P * chosen_P).sum().detach(),
    }
    return LossOutput(loss=(pairs.weights_P * loss_P).sum(), metrics=metrics)
