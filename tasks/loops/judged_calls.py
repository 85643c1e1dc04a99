"""What a teacher made of the calls of one state: a score for each, and the call that is imitated.

Of an order a call's score is the share of the others that it stands above, a tie counting half (Borda); of two orders the
mean, so that two calls whose order depends on how they were shown come out even. The teacher's own call stands above all.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specs.ladder import Actions
from specs.records import TeacherSignal
from tasks.teachers import orders

Call = Mapping[str, Any]
Scored = list[tuple[Call, float]]
"""Calls with the teacher's scores, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The calls of a state."""

    scores: Scored
    """The teacher's own call stands last and has the highest score there is. Empty where nothing counts of what was said."""
    imitated: Call | None
    why: str = ""
    """Why none is imitated."""


def judged(answers: Sequence[TeacherSignal], spec: Actions, pairs: Counter[str]) -> Judged:
    """Return what the answers about a state say; `pairs` counts those of calls on which two orders agreed and disagreed."""
    contents = [answer.content or {} for answer in answers]
    if spec.form == "score":
        return _by_score(contents[0], spec.least_score)
    if spec.swaps and len(contents) < 2 and len(contents[0]["candidates"]) > 1:
        return Judged([], None, "one_order_alone")
    return _by_order(contents, pairs)


def _by_score(content: Mapping[str, Any], least: float) -> Judged:
    scores: Scored = list(zip(content["candidates"], content["scores"], strict=True))
    best = content["best"]
    if best is None:
        return Judged(scores, None, "no_best")
    given = [s for c, s in scores if c == best]
    if given and max(given) < least:  # it contradicts itself
        return Judged([], None, "below_least_score")
    return Judged([(c, s) for c, s in scores if c != best] + [(best, 1.0)], best)


def _by_order(contents: Sequence[Mapping[str, Any]], pairs: Counter[str]) -> Judged:
    calls = {_text(c): c for c in contents[0]["candidates"]}
    shown = [[[_text(content["candidates"][i]) for i in tier] for tier in content["tiers"]] for content in contents]
    both, apart = orders.agreed(shown)
    pairs += Counter({"agreed": len(both), "disagreed": apart})
    named = {_text(content["best"]) for content in contents if content["best"] is not None}
    best = next(iter(named)) if len(named) == 1 else None
    if best is not None:
        calls |= {best: next(c["best"] for c in contents if c["best"] is not None)}
    whole = [orders.shares(_with_best(tiers, best)) for tiers in shown]
    scores = [(calls[c], sum(found[c] for found in whole) / len(whole)) for c in calls if c != best]
    imitated, why = _imitated(shown, best, len(named))
    return Judged(
        scores + ([(calls[best], 1.0)] if best is not None else []), None if imitated is None else calls[imitated], why
    )


def _with_best(tiers: Sequence[Sequence[str]], best: str | None) -> list[list[str]]:
    """Return the tiers with the teacher's own call above all others."""
    rest = [[c for c in tier if c != best] for tier in tiers]
    return ([] if best is None else [[best]]) + [tier for tier in rest if tier]


def _imitated(shown: Sequence[Sequence[Sequence[str]]], best: str | None, named: int) -> tuple[str | None, str]:
    """Return the call that is imitated, and why none is: a teacher that contradicts itself is not followed."""
    if named > 1:
        return None, "best_differs"
    first = [set(tiers[0]) if tiers else set[str]() for tiers in shown]
    if best is not None:
        placed = any(best in tier for tiers in shown for tier in tiers)
        return (None, "not_first") if placed and not all(best in tier for tier in first) else (best, "")
    alone = first[0] if len(first[0]) == 1 and all(tier == first[0] for tier in first) else set[str]()
    return (next(iter(alone)), "") if alone else (None, "no_best")


def _text(call: Call) -> str:
    return json.dumps(call, sort_keys=True)
