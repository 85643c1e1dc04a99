"""What compression does and what self-teaching minimises, as an equation and in words. Pure."""

from specs.compression import Compression, Prune
from specs.distillation import OPD
from specs.self_teaching import SelfEvolve, SelfTaught
from specs.short_opd import ByConfidence, ByGap, Segments, ShortOPD


def compression_words(spec: Compression) -> tuple[str, str]:
    """Return what a stage does to the weights; it minimises nothing."""
    if not isinstance(spec, Prune):
        shared = "a row" if spec.group is None else f"{spec.group} weights"
        how = "the largest weight" if spec.scale == "largest" else "the least squared error"
        what = "all matrices" + (" and the embedding" if spec.embedding else " but the embedding")
        return "no loss", f"{what} rounded to {spec.bits} bits, a scale for {shared} set by {how}"
    by = {
        "influence": "those that turn their input the least",
        "loss": "one by one, the least missed",
        "last": "the last but the final one",
    }
    parts = [f"{spec.layers} layers ({by[spec.layers_by]})"] if spec.layers else []
    parts += [f"{spec.neurons:.0%} of the inner neurons"] if spec.neurons else []
    parts += [f"{spec.heads:.0%} of the heads"] if spec.heads else []
    return "no loss", f"removed: {', '.join(parts)}; measured on {spec.calibration} demonstrations"


_TOKENS = {
    "selected": "the {share:.0%} of tokens that pi is least sure of",
    "top_k": "all tokens, KL from the frozen self's {top_k} likeliest and one bucket",
    "tool_call": "names and argument values of calls",
    "action": "turns that hold a usable call",
}


def self_taught(spec: SelfTaught, equation: str) -> tuple[str, list[str]]:
    """Return the equation with the term of self-teaching, and what is to be known of it."""
    equation, words = _form(spec, equation)
    return equation, [*words, *_grown(spec)]


def _grown(spec: SelfTaught) -> list[str]:
    told = spec.growth if isinstance(spec, SelfEvolve) else None
    if told is None:
        return []
    levels = ", ".join(map(str, told.calls))
    return [
        f"{told.share:.0%} of the problems are made anew, at levels of {levels} calls; the next one opens where over "
        f"{told.open_above:.0%} of the hardest are solved, in {told.least} rollouts or more"
    ]


def _form(spec: SelfTaught, equation: str) -> tuple[str, list[str]]:
    match spec.form:
        case "redistribute":
            told = spec.redistribute
            words = f"A of a token = A ((1 - m) + m clip(exp(sign(A) d), {1 - told.clip:g}, {1 + told.clip:g}))"
            mix = f"m falls from {told.mix:g} to 0 in {told.decay_steps} steps"
            return equation, [words, "d = log pi of the teaching self - log pi", mix, _shown(spec)]
        case "gated":
            gate = f"g = stop(sigmoid({spec.gated.sharpness:g} (log teacher - log pi)))"
            term = f" + {spec.gated.coef:g} sum w g (log teacher - log pi)"
            return equation + term, [gate, _risen(spec.gated.warmup_steps), _shown(spec)]
        case "success_distill":
            return equation + f" + {spec.success_distill.coef:g} L_SD", _successes(spec)


def _shown(spec: SelfTaught) -> str:
    told = spec.privileged
    shown = f", shown {' or else '.join(told.shows)}" if told.shows else ", shown nothing more"
    return f"the teaching self is the policy of at most {told.sync_every} steps before{shown}"


def _risen(steps: int) -> str:
    return f"its coefficient rises in {steps} steps" if steps else "its coefficient is constant"


def _successes(spec: SelfTaught) -> list[str]:
    told = spec.success_distill
    tokens = _TOKENS[told.tokens].format(share=told.share, top_k=told.top_k)
    likelihood = "KL(frozen || pi)" if told.tokens == "top_k" else "- log pi"
    words = [
        f"L_SD = mean of v {likelihood} over verified successes of a frozen self: {tokens}",
        f"v = reward x ({told.shortness:g} where shorter than usual), with a mean of 1",
        f"{told.exploration:.0%} of a step's problems are the policy's own tries and carry L",
        f"the frozen self is renewed after {spec.snapshot.every} steps where success grew by {spec.snapshot.min_gain:g}",
        _risen(told.warmup_steps),
    ]
    if isinstance(spec, SelfEvolve) and spec.experience:
        words.append(f"{spec.experience_per_step} verified rollouts a step of {', '.join(spec.experience)} teach too")
    if isinstance(spec, SelfEvolve) and (said := spec.learners) is not None:
        words.append(
            f"{len(said.each)} learners, each {said.turns} turns of {spec.steps // said.turns} steps; {spec.experience_per_step} "
            f"verified rollouts a step of all of them in the turn before teach too; the best on {said.choose_on} goes on"
        )
    return words


def shortened(spec: OPD, longest: float, equation: str, words: str) -> tuple[str, str]:
    """Return the loss of distillation with what is said about lengths and tokens, where anything is.

    Lengths are those that the agent allows, at most `longest` tokens.
    """
    if not isinstance(spec, ShortOPD):
        return equation, words
    length = spec.length
    if isinstance(length, ByGap):
        told = f"a completion's limit is {_three(length.lengths, longest)} tokens by the last step's divergence"
        told += f" (below {length.bounds[0]:g}, below {length.bounds[1]:g}, above)"
    elif isinstance(length, ByConfidence):
        told = f"a completion's limit is {_three(length.lengths, longest)} tokens by the policy's mean probability"
        told += f" (above {length.bounds[1]:g}, above {length.bounds[0]:g}, below)"
    else:
        told = f"a completion's limit begins at {min(length.start, longest)} tokens and follows loops and cuts every {length.every} steps"
        told += f" between {min(length.least, longest)} and {min(length.most, longest)}; loops do not train"
    if spec.truncated == "mask" and isinstance(length, ByGap | ByConfidence):
        told += ", the next longer where most rollouts were cut"
    parts = [words, told]
    if isinstance(spec.select, Segments):
        parts.append(f"of each trajectory the {spec.select.share:.0%} of turns with the highest divergence")
    elif spec.select is not None:
        above = f" above {spec.select.above:g} nats" if spec.select.above else ""
        parts.append(f"the {spec.select.share:.0%} of tokens with the highest divergence{above}")
    if spec.horizon < 1:
        parts.append(f"the first {spec.horizon:.0%} of a trajectory's tokens train, all of them in the last step")
    return equation, "; ".join(parts)


def _three(lengths: tuple[int, int, int], longest: float) -> str:
    first, second, third = (min(n, longest) for n in lengths)
    return f"{first}, {second} or {third}"
