"""One answer made of several teachers' answers to the same question. Pure.

Scores are averaged, orders are added up by place, labels and calls are voted on. Members that gave no answer have no
say; below the quorum of weight there is none.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from specs.routing import Signal
from tasks.teachers.reading import LABELS, Unreadable

Json = dict[str, Any]
Combine = Literal["vote", "weighted", "best"]
Votes = Sequence[tuple[float, Json]]
Judge = Callable[[Any, Json], float]
"""(question, correction) -> how good it is."""
_ROUNDING = 1e-9


def combined(
    signal: Signal, combine: Combine, weights: Mapping[str, float], contents: Mapping[str, Json | None], quorum: float
) -> Json:
    """Return the content of the members' contents. Unreadable below the quorum, or where they cannot agree."""
    given = _given(weights, contents, quorum)
    votes = [(1.0 if combine == "vote" else weights[n], c) for n, c in given.items()]
    made = _OF[signal](votes, combine)
    return (
        made | {"members": sorted(given)} | ({"marked": True} if any(c.get("marked") for c in given.values()) else {})
    )


def best(
    weights: Mapping[str, float], contents: Mapping[str, Json | None], quorum: float, judge: Callable[[Json], float]
) -> Json:
    """Return the answer that `judge` likes best, of several equally good ones the first by name."""
    given = _given(weights, dict(sorted(contents.items())), quorum)
    worth = {name: judge(c) for name, c in given.items()}
    name = max(given, key=lambda n: worth[n])
    return given[name] | {"members": [name], "worth": worth[name]}


def _given(weights: Mapping[str, float], contents: Mapping[str, Json | None], quorum: float) -> dict[str, Json]:
    """Return the answers that there are. Unreadable below the quorum."""
    given = {name: c for name, c in contents.items() if c is not None}
    weight = sum(weights[n] for n in given) / sum(weights.values())
    if not given or weight < quorum - _ROUNDING:
        raise Unreadable(
            f"{len(given)} of {len(weights)} members answered ({weight:.0%} of the weight), quorum {quorum:g}"
        )
    return given


def _middle(values: Sequence[tuple[float, float]], combine: Combine) -> float:
    if combine == "vote":
        return float(median(v for _, v in values))
    return sum(w * v for w, v in values) / sum(w for w, _ in values)


def _score(votes: Votes, combine: Combine) -> Json:
    names = list(votes[0][1]["dimensions"])
    found = {d: _middle([(w, c["dimensions"][d]) for w, c in votes], combine) for d in names}
    return {"score": sum(found.values()) / len(found), "dimensions": found}


def _rank(votes: Votes, combine: Combine) -> Json:
    """Add up the share of the others that each candidate is placed above (Borda); ties share their places."""
    points: dict[Any, float] = {}
    """By trajectory, or by number of a candidate call."""
    for weight, content in votes:
        below = sum(len(tier) for tier in content["tiers"])
        for tier in content["tiers"]:
            below -= len(tier)
            for name in tier:
                points[name] = points.get(name, 0.0) + weight * (below + (len(tier) - 1) / 2)
    tiers: dict[float, list[Any]] = {}
    for name, value in sorted(points.items(), key=lambda item: -item[1]):
        tiers.setdefault(round(value, 9), []).append(name)
    return {"tiers": list(tiers.values())}


def _critique(votes: Votes, combine: Combine) -> Json:
    turns: list[Json] = []
    for number in range(len(votes[0][1]["turns"])):
        said = [(w, c["turns"][number]) for w, c in votes]
        label = _label([(w, t["label"]) for w, t in said])
        fixes = [(w, t["correction"]) for w, t in said if t["label"] == label and t["correction"] is not None]
        turns.append({"turn": number, "label": label, "correction": _call(fixes)})
    errors = [t for t in turns if t["label"] == "first_error"]
    for later in errors[1:]:  # each member named one turn; of several that won, the first is the first
        later["label"] = "bad"
    assert all(t["label"] in LABELS for t in turns), "labels come from a reader that knows them"
    return {"turns": turns}


def _label(votes: Sequence[tuple[float, str]]) -> str:
    """Return the label with most votes; where as many say the contrary, nothing was said."""
    weight = {label: sum(w for w, v in votes if v == label) for _, label in votes}
    winners = [label for label in sorted(weight) if weight[label] >= max(weight.values()) - _ROUNDING]
    return winners[0] if len({LABELS[label] for label in winners}) == 1 else "neutral"


def _action(votes: Votes, combine: Combine) -> Json:
    first = votes[0][1]
    named = [(w, c["best"]) for w, c in votes if c["best"] is not None]
    if "tiers" in first:
        return _rank(votes, combine) | {"best": _call(named), "candidates": first["candidates"]}
    scores = [_middle([(w, c["scores"][i]) for w, c in votes], combine) for i in range(len(first["scores"]))]
    return {"scores": scores, "best": _call(named), "candidates": first["candidates"]}


def _sample(votes: Votes, combine: Combine) -> Json:
    """Return the correction that most agree on; one that stands alone among several counts as no answer."""
    whole = [(w, {k: c[k] for k in ("keep", "calls")}) for w, c in votes]
    winner = _call(whole)
    agreeing = sum(_text(c) == _text(winner) for _, c in whole)
    if combine == "vote" and len(votes) > 2 and agreeing == 1:
        raise Unreadable(f"{len(votes)} members gave as many different corrections")
    assert winner is not None, "there is a vote"
    return winner


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _voted(votes: Sequence[tuple[float, str]]) -> str:
    weight: dict[str, float] = {}
    for w, value in votes:
        weight[value] = weight.get(value, 0.0) + w
    return max(sorted(weight), key=lambda v: weight[v])


def _call(votes: Sequence[tuple[float, Json]]) -> Json | None:
    if not votes:
        return None
    chosen = _voted([(w, _text(c)) for w, c in votes])
    return json.loads(chosen)


_OF: dict[str, Callable[[Votes, Combine], Json]] = {
    "score": _score, "rank": _rank, "critique": _critique, "action": _action, "sample": _sample,
}  # fmt: skip
