"""IPO: identity preference optimisation (arXiv:2310.12036).

L = sum_p w_p (D - 1 / (2 tau))^2, D = h_chosen - h_rejected, h = log pi(y) - log reference(y).
The paper sums h over tokens; its authors confirmed the mean per token for language models, which is the default here
(`lengths: mean`). The push ends at D = 1 / (2 tau), where the gradient is 0.
Left out: nothing. B rows, T tokens, P pairs.
"""

from specs.preference import IPO
from tasks.tensors import Batch, LossOutput, log_ratios, pair_terms


def loss(batch: Batch, spec: IPO) -> LossOutput:
    """Return the squared distance of each pair's margin to its target; needs pairs and reference logprobs."""
    pairs = pair_terms(log_ratios(batch), batch)
    chosen_P, rejected_P = pairs.per_token() if spec.lengths == "mean" else (pairs.chosen_P, pairs.rejected_P)
    margin_P = chosen_P - rejected_P
    loss_P = (margin_P - 1 / (2 * spec.tau)).square()
    metrics = {
        "accuracy": (pairs.weights_P * (margin_P > 0)).sum().detach(),
        "margin": (pairs.weights_P * margin_P).sum().detach(),
        "chosen_shift": (pairs.weights_P * chosen_P).sum().detach(),
        "rejected_shift": (pairs.weights_P * rejected_P).sum().detach(),
    }
    return LossOutput(loss=(pairs.weights_P * loss_P).sum(), metrics=metrics)
