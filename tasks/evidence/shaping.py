"""Parts of a reward: what verifiers, calls and tokens add to an outcome, each bounded, none to a broken condition.

R = floor where a hard condition is broken, else outcome + sum w_k s_k + clip(process, -c, c) + penalties.
Left out: potential shaping, which needs the worth of states.
"""

from collections.abc import Iterable, Mapping, Sequence


def weighted(scores: Iterable[float], weights: Iterable[float]) -> float:
    """Return the sum of scores by weight."""
    return sum(w * s for w, s in zip(weights, scores, strict=True))


def capped(process: float, cap: float) -> float:
    """Return what steps earn in sum, at most `cap` either way, so that the outcome stays in charge."""
    return max(-cap, min(cap, process))


def repeated(tokens: Sequence[int], ngram: int) -> float:
    """Return the share of n-grams that have stood before; 0 where there are fewer than two."""
    grams = list(zip(*(tokens[k:] for k in range(ngram)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def total(parts: Mapping[str, float], *, kept: bool, floor: float) -> float:
    """Return the reward; where a hard condition is broken nothing else counts."""
    return sum(parts.values()) if kept else floor
