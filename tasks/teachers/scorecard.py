"""What a teacher was worth: answers, failures, cost, and how often the verifiers agree with it. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specs.records import TeacherSignal, Trajectory

Json = dict[str, Any]


def scorecard(signals: Sequence[TeacherSignal], trajectories: Mapping[str, Trajectory]) -> Json:
    """Return, by teacher: questions, answers, failures by reason, cost, agreement with verifiers by problem type."""
    cards: Json = {}
    for teacher in sorted({s.teacher for s in signals}):
        own = [s for s in signals if s.teacher == teacher]
        used = [s for s in own if s.content is not None]
        usd = sum(s.usd for s in own)
        cards[teacher] = {
            "revision": own[0].revision,
            "asked": len(own),
            "answered": len(used),
            "failures": dict(sorted(Counter(reason(s) for s in own if s.content is None).items())),
            "usd": round(usd, 6),
            "usd_per_signal": round(usd / len(used), 6) if used else None,
            "agreement": _agreement(used, trajectories),
        }
    return cards


def reason(signal: TeacherSignal) -> str:
    """Return the word for why there is no content."""
    return (signal.failure or "").partition(":")[0]


def tallies(cards: Iterable[Json]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (teacher, problem type) -> (agreed, judged), summed over several scorecards."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for card in cards:
        for teacher, told in card.items():
            for kind, (agreed, judged) in told["agreement"]["by_type"].items():
                before = found.get((teacher, kind), (0, 0))
                found[teacher, kind] = (before[0] + agreed, before[1] + judged)
    return found


def _agreement(signals: Sequence[TeacherSignal], trajectories: Mapping[str, Trajectory]) -> Json:
    """Return how many comparisons with verdicts there were, and in how many the teacher said the same."""
    by_type: dict[str, list[int]] = {}
    for signal in signals:
        agreed, judged = compared(signal, trajectories)
        if judged:
            tally = by_type.setdefault(signal.problem_type, [0, 0])
            tally[0] += agreed
            tally[1] += judged
    judged = sum(t[1] for t in by_type.values())
    rate = round(sum(t[0] for t in by_type.values()) / judged, 4) if judged else None
    return {"rate": rate, "judged": judged, "by_type": dict(sorted(by_type.items()))}


def compared(signal: TeacherSignal, trajectories: Mapping[str, Trajectory]) -> tuple[int, int]:
    """Return (agreed, comparisons) of one answer with what the verifiers said; (0, 0) where they say nothing of it.

    A score is one comparison (0.5 or more is a success), an order one for each pair of a success and a failure (a tie
    is no agreement), a critique one (a failure has a turn that is called an error, a success has none).
    """
    content = signal.content
    if content is None:
        return 0, 0
    success = [trajectories[t].success for t in signal.trajectories if t in trajectories]
    match signal.signal:
        case "score" if len(success) == 1 and success[0] is not None:
            return int((content["score"] >= 0.5) == success[0]), 1
        case "critique" if len(success) == 1 and success[0] is not None:
            error = any(t["label"] in ("bad", "first_error") for t in content["turns"])
            return int(error != success[0]), 1
        case "rank":
            return _pairs(content["tiers"], trajectories)
        case _:
            return 0, 0


def _pairs(tiers: Sequence[Sequence[str]], trajectories: Mapping[str, Trajectory]) -> tuple[int, int]:
    place = {t: i for i, tier in enumerate(tiers) for t in tier if t in trajectories}
    good = [t for t in place if trajectories[t].success is True]
    bad = [t for t in place if trajectories[t].success is False]
    return sum(place[g] < place[b] for g in good for b in bad), len(good) * len(bad)
