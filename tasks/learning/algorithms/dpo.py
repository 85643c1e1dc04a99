"""DPO: direct preference optimisation (arXiv:2305.18290), with label smoothing, by length, and with a likelihood term.

h = log pi(y) - log reference(y), summed over the trained tokens of a side (`lengths: sum`) or their mean (`mean`, the
length-normalised form of Tulu 3, 2411.15124); D = h_chosen - h_rejected.
L = sum_p w_p [ -(1 - e) log s(beta D) - e log s(-beta D) - nll_coef mean log pi(chosen) ], s the logistic function,
e the label smoothing, w summing to 1 over the pairs of the step; nll_coef > 0 is RPO (2404.19733).
dL/dh_chosen = -beta s(-beta D) for one pair without smoothing. The reference is the policy the stage started from.
Left out: the robust form, which divides by 1 - 2 e; other divergences. B rows, T tokens, P pairs.
"""

from torch.nn.functional import logsigmoid

from specs.preference import DPO
from tasks.tensors import Batch, LossOutput, log_ratios, pair_terms


def loss(batch: Batch, spec: DPO) -> LossOutput:
    """Return the smoothed logistic loss; needs pairs and reference logprobs."""
    pairs = pair_terms(log_ratios(batch), batch)
    chosen_P, rejected_P = pairs.per_token() if spec.lengths == "mean" else (pairs.chosen_P, pairs.rejected_P)
    margin_P = chosen_P - rejected_P
    right_P, wrong_P = logsigmoid(spec.beta * margin_P), logsigmoid(-spec.beta * margin_P)
    loss_P = -(1 - spec.label_smoothing) * right_P - spec.label_smoothing * wrong_P
    metrics = {
        "accuracy": (pairs.weights_P * (margin_P > 0)).sum().detach(),
        "margin": (pairs.weights_P * margin_P).sum().detach(),
        "chosen_shift": (pairs.weights_P * chosen_P).sum().detach(),
        "rejected_shift": (pairs.weights_P * rejected_P).sum().detach(),
    }
    if spec.nll_coef > 0:
        likelihood_P = pair_terms(batch.logprobs_BT, batch).per_token()[0]
        loss_P = loss_P - spec.nll_coef * likelihood_P
        metrics["chosen_nll"] = -(pairs.weights_P * likelihood_P).sum().detach()
    return LossOutput(loss=(pairs.weights_P * loss_P).sum(), metrics=metrics)
