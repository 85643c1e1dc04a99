"""What preference stages and reward-weighted ones minimise, as an equation and in words. Pure."""

from typing import assert_never

from specs.preference import DPO, IPO, KTO, ORPO, Pairing, Preference, SimPO
from specs.supervised import RewardWeighted

_OVER = {
    "weighted_tokens": ("sum w n", "free of the weights' scale"),
    "sequences": ("sum w", "long trajectories count more"),
    "tokens": ("sum n", "w having a mean of 1"),
}


def weighted_loss(spec: RewardWeighted) -> tuple[str, str]:
    """Return the loss of reward-weighted likelihood, and what its terms are."""
    over, why = _OVER[spec.denominator]
    among = "its problem, each problem counting the same" if spec.among == "problem" else "all that was collected"
    words = [
        f"w = softmax(R / {spec.reward_temperature:g}) within {among}, at most {spec.max_weight:g} times the mean",
        f"over {spec.samples} trajectories of each problem" + (" that was solved" if spec.require_success else ""),
        f"divided by {over} of all that was collected: {why}",
    ]
    return f"L = - sum w log pi(token) / {over}", "; ".join(words)


def preference_loss(spec: Preference) -> tuple[str, str]:
    """Return the loss of an algorithm on pairs, and what its terms are."""
    equation, terms = _equation(spec)
    unit = "trajectory" if spec.pairing.choose == "alone" else "pair"
    return equation, "; ".join([*terms, _pairs(spec.pairing), f"every {unit} of a step by its weight"])


def _equation(spec: Preference) -> tuple[str, list[str]]:
    start = "start = the policy that the stage started from"
    side = "+ is the chosen side and - the rejected one"
    match spec:
        case DPO():
            return _dpo(spec), [_ratio(spec.lengths), side, start]
        case IPO():
            return f"L = mean (h+ - h- - {1 / (2 * spec.tau):g})^2", [_ratio(spec.lengths), side, start]
        case ORPO():
            odds = "log odds = m - log(1 - e^m)"
            equation = f"L = mean [- m+ - {spec.odds_coef:g} log sigmoid(log odds+ - log odds-)]"
            return equation, ["m = mean log pi(token)", odds, side, "no reference"]
        case SimPO():
            equation = f"L = - mean log sigmoid({spec.beta:g} (m+ - m- - {spec.gamma_over_beta:g}))"
            return equation, ["m = mean log pi(token)", side, "no reference"]
        case KTO():
            good, bad = f"{spec.desirable_weight:g}", f"{spec.undesirable_weight:g}"
            equation = (
                f"L = mean [{good} sigmoid({spec.beta:g} (z - h+))] + mean [{bad} sigmoid({spec.beta:g} (h- - z))]"
            )
            z = "z = mean h of prompts with another problem's completion, at least 0, of the step"
            return equation, [_ratio("sum"), z, f"{side}, each mean over all trajectories of the step", start]
        case _:
            assert_never(spec)


def _dpo(spec: DPO) -> str:
    e = spec.label_smoothing
    equation = f"- {1 - e:g} log sigmoid({spec.beta:g} (h+ - h-))" if e else f"- log sigmoid({spec.beta:g} (h+ - h-))"
    equation += f" - {e:g} log sigmoid({spec.beta:g} (h- - h+))" if e else ""
    equation += f" - {spec.nll_coef:g} mean log pi(token+)" if spec.nll_coef else ""
    return f"L = mean [{equation}]"


def _ratio(lengths: str) -> str:
    what = "log pi(token) - log start(token)"
    return f"h = sum of {what}" if lengths == "sum" else f"h = mean of {what} (length-normalised)"


def pair_words(spec: Pairing) -> str:
    """Return which pairs are made of rollouts."""
    return _pairs(spec)


def _pairs(spec: Pairing) -> str:
    if spec.choose == "alone":
        return f"{spec.samples} rollouts of each problem, + those that succeeded, - those that failed, each side half"
    against = "one that failed" if spec.rejected == "failed" else "one of lower reward"
    which = (
        "the best and the worst of a problem" if spec.choose == "best_worst" else "all, each problem counting the same"
    )
    margin = f", rewards more than {spec.margin:g} apart" if spec.margin else ""
    return f"pairs of {spec.samples} rollouts of each problem: a success and {against}, {which}{margin}"
