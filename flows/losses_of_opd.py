"""What distillation from a teacher's probabilities minimises, in an equation and in words. Pure."""

from typing import assert_never

from flows.losses import MEAN
from specs.distillation import OPD, Distillation, FullVocabulary, SampledTokens, TeacherTerm, TopTokens

_KL = {
    "reverse": "KL(pi || teacher)",
    "forward": "KL(teacher || pi)",
    "symmetric": "(KL(pi || teacher) + KL(teacher || pi)) / 2",
}
_COMBINED = {
    "mixture": "the weighted mean of their probabilities",
    "log_linear": "the weighted product of their probabilities, made to sum to 1",
    "sum": "each of them in turn, weighted",
}
_REST = {"bucket": "and one bucket for the rest", "none": "alone", "renormalize": "made to sum to 1"}
_SPREAD = {
    "equal": "in equal parts",
    "broadcast": "whole to each",
    "teacher_share": "as the teacher's mean less each token's own logprob",
    "last": "to the last, and from there whole to those before it",
    "causal": "less what stands before each",
}


def opd_loss(spec: OPD) -> tuple[str, str]:
    """Return the equation of on-policy distillation and what its terms are."""
    equation, words = distillation_words(spec, beside=spec.demonstrations > 0)
    if spec.outcome_coef:
        equation = equation.replace(" A ", f" (A + {spec.outcome_coef:g} A_outcome) ")
        words.append("A_outcome = (R - mean) / std within a group, by the verifiers")
    words.append(MEAN[spec.aggregation])
    words.append(
        "cut trajectories are left out" if spec.truncated == "mask" else "cut trajectories train like the others"
    )
    if spec.demonstrations:
        words.append(f"{spec.demonstrations:.0%} of a step's trajectories are demonstrations")
    return f"L = {equation}", "; ".join(words)


def with_teacher(told: tuple[str, str], term: TeacherTerm | None) -> tuple[str, str]:
    """Return a loss in an equation and in words with the teacher's term, where there is one."""
    if term is None:
        return told
    equation, words = teacher_term(term)
    return f"{told[0]} + {equation}", f"{told[1]}; {words}"


def teacher_term(term: TeacherTerm) -> tuple[str, str]:
    """Return the term that stands beside another loss, and what it is."""
    equation, words = distillation_words(term)
    coef = f"{term.coef:g}" if term.coef_end is None else f"({term.coef:g} to {term.coef_end:g})"
    if term.full_length is not None:
        words.append(f"trajectories of more than {term.full_length} tokens count by {term.full_length} / tokens")
    words.append("v = 1 / tokens with a teacher (a denominator of its own)")
    return f"{coef} ({equation.replace('sum w', 'sum v')})", "; ".join(words)


def distillation_words(spec: Distillation, *, beside: bool = False) -> tuple[str, list[str]]:
    """Return what is summed over tokens, and the words for it."""
    words: list[str] = []
    match spec.over:
        case SampledTokens() as over:
            equation = _sampled(over, words)
        case FullVocabulary() | TopTokens() as over:
            equation = _compared(over, words, beside=beside)
        case _:
            assert_never(spec.over)
    if spec.teachers is None:
        words.append("teachers by routing")
    elif len(spec.teachers) == 1:
        words.append(f"teacher: {next(iter(spec.teachers))}")
    if spec.teachers is None or len(spec.teachers) > 1:
        named = "" if spec.teachers is None else f" ({', '.join(f'{w:g} {n}' for n, w in spec.teachers.items())})"
        words.append(f"several teachers{named}: {_COMBINED[spec.combine]}")
    if spec.by_confidence:
        words.append("a teacher weighs less the more its distribution is spread out")
    if spec.token_weights == "reward":
        words.append("trajectories weigh by their reward")
    if (states := spec.states) is not None:
        words.append(
            f"in failed trajectories the first wrong turn weighs {states.wrong:g}, later ones {states.later:g} ** turns "
            f"(at least {states.least:g}), a recovery {states.recovery:g}"
        )
    return equation, words


def _compared(over: FullVocabulary | TopTokens, words: list[str], *, beside: bool) -> str:
    if over.direction == "jsd":
        inner = f"JSD_{over.beta:g}(teacher, pi)"
    elif over.direction == "auto":
        inner = _KL["reverse"]
        words += [f"{_KL['forward']} on demonstrations"] if beside else []
    else:
        inner = _KL[over.direction]
    if isinstance(over, TopTokens):
        whose = {"policy": "policy's", "teacher": "teacher's"}.get(
            over.support, "teacher's" if over.direction == "forward" else "policy's"
        )
        words.append(f"over the {whose} {over.size} likeliest tokens {_REST[over.rest]}")
    else:
        words.append("over the whole vocabulary")
    if over.loss_temperature != 1:
        words.append(f"both at temperature {over.loss_temperature:g}")
    if over.most is not None:
        words.append(f"no gradient above {over.most:g} nats")
    return f"sum w {inner}"


def _sampled(over: SampledTokens, words: list[str]) -> str:
    words.append(
        f"A = log teacher(token) - log pi(token), at most {over.most:g} either way, on the policy's own tokens"
    )
    if over.spread != "equal":
        words.append(f"on text that several tokens share, A is given {_SPREAD[over.spread]}")
    if over.estimator == "k2":
        return "sum w A^2 / 2"
    if over.discount:
        later = "pieces" if over.spread == "last" else "tokens"
        words.append(f"A of later {later} is added, discounted by {over.discount:g}")
    if over.early_coef:
        words.append(f"early tokens weigh up to {1 + over.early_coef:g}")
    if over.ratio_band is not None:
        words.append(f"r = pi / sampler, 0 outside [{over.ratio_band[0]:g}, {over.ratio_band[1]:g}]")
    else:
        words.append("r = pi / sampler")
    return "- sum w stop(r) A log pi(token)"
