"""What stages minimise that learn from a teacher's words, in equations and in words. Pure."""

from flows.losses_of_opd import opd_loss
from flows.losses_of_pairs import preference_loss
from flows.taught import preferring
from specs.distillation import OPD
from specs.ladder import ActionDistill, Actions, FromTeacher, Listwise, Practice, SoftLabel, TaughtAlgorithm
from specs.routing import Signal

_UTILITY = {
    "mean": "u = mean log pi(token) of a candidate",
    "sum": "u = sum of log pi(token) of a candidate (short ones win)",
    "ratio": "u = mean of log pi(token) - log start(token) of a candidate",
}


def taught_loss(spec: TaughtAlgorithm, signal: Signal | None) -> tuple[str, str]:
    """Return the equation of a stage's loss and what its terms are; `signal` is the one that was chosen."""
    drawn = f"{spec.samples} rollouts of each problem" + (f" in {spec.rounds} rounds" if spec.rounds > 1 else "")
    match spec:
        case SoftLabel():
            names = ", ".join(f"{n} {w:g}" for n, w in spec.rubric.dimensions.items())
            equation, words = _listwise(spec.listwise)
            return equation, f"signal score ({names}) of {drawn}; {words}; every problem counts the same"
        case ActionDistill():
            return _actions(spec.actions, drawn)
        case FromTeacher():
            return _of_signal(spec, signal, drawn)


def _of_signal(spec: FromTeacher, signal: Signal | None, drawn: str) -> tuple[str, str]:
    match signal:
        case None:
            return "L = ?", "no signal that all its teachers give can be used"
        case "logprobs":
            return opd_loss(OPD(type="opd", over=spec.over, teachers=spec.teachers))
        case "action":
            return _actions(spec.actions, drawn)
        case "sample":
            return _corrections(spec, drawn)
        case "rank":
            equation, words = preference_loss(preferring(spec.ranking.prefer, spec))
            both = ", in both orders of showing; pairs on which both agree" if spec.ranking.swaps else ""
            which = (
                "best and worst"
                if spec.ranking.choose == "best_worst"
                else "every pair, each problem counting the same"
            )
            return equation, f"signal rank of {drawn}{both}: {which}; {_without_pairs(words)}"
        case "score":
            rule = spec.scoring
            names = ", ".join(f"{n} {w:g}" for n, w in rule.rubric.dimensions.items())
            words = f"signal score of {drawn}: A = (R + {rule.weight:g} x score ({names}))"
            return _practice(rule.practice, words)
        case "critique":
            words = (
                f"signal critique of {drawn}: A of a turn = A of R + {spec.critique.turn_coef:g} x (label - mean label)"
            )
            equation, told = _practice(spec.critique.practice, words)
            if coef := spec.critique.correction_coef:
                told += (
                    f"; A = {coef:g} for the call that is right at the first error of a failure, there r = pi / start"
                )
            return equation, told


def _corrections(spec: FromTeacher, drawn: str) -> tuple[str, str]:
    rule = spec.corrections
    what = "all its turns" if rule.kept_turns else "the teacher's turns"
    each = f"{rule.samples} corrections of each" if rule.samples > 1 else "corrections"
    words = f"signal sample of failures among {drawn}: {each}, played in the episode's world and verified"
    if rule.samples > 1:
        words += ", all that hold and differ" if rule.keep == "all" else ", the best that holds"
    if rule.learn == "sft":
        return "L = - sum w log pi(token)", f"{words}; over {what}, every token the same"
    equation, terms = preference_loss(preferring(rule.prefer, spec))
    paired = f"{words}; pairs of a correction and what it corrects; {_without_pairs(terms)}"
    if rule.learn == "pairs":
        return equation, paired
    return f"L = - sum w log pi(token), then {equation}", f"{paired}; before it, likelihood of {what}"


def _without_pairs(words: str) -> str:
    """Return the terms of a loss on pairs without where pairs usually come from."""
    return "; ".join(w for w in words.split("; ") if not w.startswith("pairs of"))


def _listwise(spec: Listwise) -> tuple[str, str]:
    equation = f"L = - mean sum_i q_i log softmax(u / {spec.kappa:g})_i"
    return equation, f"q = softmax(score / {spec.tau:g}) over the candidates of a list; {_UTILITY[spec.utility]}"


def _actions(spec: Actions, drawn: str) -> tuple[str, str]:
    where = "where the samples differ most" if spec.choose == "disagreed" else "from the first on"
    words = f"signal action in at most {spec.states} states of {drawn}, {where}"
    ranked = spec.form == "rank"
    if ranked:
        words += ", in order" + (" and in both orders of showing" if spec.swaps else "")
    else:
        words += f", those left out in which it scored its own call below {spec.least_score:g}"
    if spec.learn == "best":
        unless = ", unless it stands below another" if ranked else ""
        return "L = - mean log pi(call)", f"{words}: the call that the teacher would make{unless}"
    equation, terms = _listwise(spec.listwise)
    terms += "; score = share of the others that a call stands above" if ranked else ""
    more = f", {spec.from_tools} more from the tool list" if spec.from_tools else ""
    return equation, f"{words}: at most {spec.candidates} calls of the policy{more} and the teacher's own; {terms}"


def _practice(spec: Practice, words: str) -> tuple[str, str]:
    equation = f"L = - sum w min(r A, clip(r, {1 - spec.clip_low:g}, {1 + spec.clip_high:g}) A)"
    equation += f" + {spec.kl_coef:g} sum w k3(pi || start)" if spec.kl_coef else ""
    spread = "divided by the group's std" if spec.scale_rewards == "group_std" else "as it is"
    return equation, f"{words}, compared within the problem, {spread}; r = pi / sampler; every token the same"
