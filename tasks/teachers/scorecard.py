"""What a teacher was worth: answers, failures, cost, and how often the verifiers agree with it. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specs.records import TeacherSignal, ToolCall, Trajectory
from tasks.teachers.asking import call_key, state_key
from tasks.teachers.orders import shares

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What answers are compared with: what the verifiers said."""

    trajectories: Mapping[str, Trajectory]
    """All that were asked about, and the others of the same problems."""
    held: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Whether a correction was a success in the world, by signal."""

    def of_problem(self) -> dict[str, list[Trajectory]]:
        """Return the trajectories by problem."""
        found: dict[str, list[Trajectory]] = {}
        for trajectory in self.trajectories.values():
            found.setdefault(trajectory.problem_id, []).append(trajectory)
        return found


def scorecard(signals: Sequence[TeacherSignal], evidence: Evidence) -> Json:
    """Return, by teacher: questions, answers, failures by reason, cost, agreement with verifiers by problem type."""
    groups = evidence.of_problem()
    counts = {s.id: compared(s, evidence, groups.get(s.problem_id, ())) for s in signals}
    cards: Json = {}
    for teacher in sorted({s.teacher for s in signals}):
        own = [s for s in signals if s.teacher == teacher]
        used = [s for s in own if s.content is not None]
        usd = sum(s.usd for s in own)
        cards[teacher] = {
            "revision": own[0].revision,
            "asked": len(own),
            "answered": len(used),
            "failures": _counted(s.failure for s in own if s.content is None),
            "absent": _absent(own),
            "asked_again": sum(s.again for s in own),
            "usd": round(usd, 6),
            "usd_per_signal": round(usd / len(used), 6) if used else None,
            "agreement": _agreement(used, counts),
        }
    return cards


def usage(signals: Sequence[TeacherSignal], used: Collection[str]) -> Json:
    """Return, by teacher, its answers, those of them that a stage learns from (by id), and what all its questions cost."""
    cards: Json = {}
    for teacher in sorted({s.teacher for s in signals}):
        own = [s for s in signals if s.teacher == teacher]
        count, usd = sum(s.id in used for s in own), sum(s.usd for s in own)
        cards[teacher] = {
            "answered": sum(s.content is not None for s in own),
            "used": count,
            "usd": round(usd, 6),
            "usd_per_used": round(usd / count, 6) if count else None,
        }
    return cards


def _counted(failures: Iterable[str | None]) -> dict[str, int]:
    """Return how often there was no answer, by the word for why."""
    return dict(sorted(Counter((why or "").partition(":")[0] for why in failures).items()))


def _absent(signals: Sequence[TeacherSignal]) -> Json:
    """Return, by member of an ensemble, how often it gave no answer by reason, and an example."""
    members = sorted({m for s in signals for m in s.absent})
    said = {m: [s.absent[m] for s in signals if m in s.absent] for m in members}
    return {m: {"failures": _counted(why), "example": why[0]} for m, why in said.items()}


def tallies(cards: Iterable[Json]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (teacher, problem type) -> (agreed, judged), summed over several scorecards."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for card in cards:
        for teacher, told in card.items():
            for kind, (agreed, judged) in told["agreement"]["by_type"].items():
                before = found.get((teacher, kind), (0, 0))
                found[teacher, kind] = (before[0] + agreed, before[1] + judged)
    return found


def _agreement(signals: Sequence[TeacherSignal], counts: Mapping[str, tuple[int, int]]) -> Json:
    """Return how many comparisons with verdicts there were, and in how many the teacher said the same."""
    by_type: dict[str, list[int]] = {}
    for signal in signals:
        agreed, judged = counts[signal.id]
        if judged:
            tally = by_type.setdefault(signal.problem_type, [0, 0])
            tally[0] += agreed
            tally[1] += judged
    judged = sum(t[1] for t in by_type.values())
    rate = round(sum(t[0] for t in by_type.values()) / judged, 4) if judged else None
    return {"rate": rate, "judged": judged, "by_type": dict(sorted(by_type.items()))}


def compared(signal: TeacherSignal, evidence: Evidence, group: Sequence[Trajectory]) -> tuple[int, int]:
    """Return (agreed, comparisons) of one answer with what the verifiers said; (0, 0) where they say nothing of it.

    A score is one comparison (0.5 or more is a success), an order one for each pair of a success and a failure (a tie
    is no agreement), a critique one (a failure has a turn that is called an error, a success has none), a correction
    one (it was a success in the world). Scores of calls are one for each pair of a call of which a success came and one of which
    failures alone did, in that state of the problem's trajectories, which are `group`.
    """
    content, trajectories = signal.content, evidence.trajectories
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
        case "sample" if signal.id in evidence.held:
            return int(evidence.held[signal.id]), 1
        case "action" if signal.turn is not None and signal.trajectories[0] in trajectories:
            return _choices(content, trajectories[signal.trajectories[0]], signal.turn, group)
        case _:
            return 0, 0


def _pairs(tiers: Sequence[Sequence[str]], trajectories: Mapping[str, Trajectory]) -> tuple[int, int]:
    place = {t: i for i, tier in enumerate(tiers) for t in tier if t in trajectories}
    good = [t for t in place if trajectories[t].success is True]
    bad = [t for t in place if trajectories[t].success is False]
    return sum(place[g] < place[b] for g in good for b in bad), len(good) * len(bad)


def _choices(content: Json, own: Trajectory, turn: int, group: Sequence[Trajectory]) -> tuple[int, int]:
    past = state_key(own, turn)
    succeeded: dict[str, bool] = {}
    """By call that was made in this state, whether a success came of it."""
    for other in group:
        call = other.turns[turn].call if len(other.turns) > turn else None
        if call is not None and other.success is not None and state_key(other, turn) == past:
            succeeded[call_key(call)] = succeeded.get(call_key(call), False) or other.success
    worth = {_key(c): score for c, score in zip(content["candidates"], _worth(content), strict=True)}
    if content["best"] is not None:
        worth[_key(content["best"])] = float("inf")
    good = [worth[key] for key, well in succeeded.items() if well and key in worth]
    bad = [worth[key] for key, well in succeeded.items() if not well and key in worth]
    return sum(g > b for g in good for b in bad), len(good) * len(bad)


def _worth(content: Json) -> list[float]:
    """Return what each candidate call of an answer is worth: its score, or its place in the order."""
    if "scores" in content:
        return content["scores"]
    found = shares(content["tiers"])
    return [found[i] for i in range(len(content["candidates"]))]


def _key(call: Mapping[str, Any]) -> str:
    return call_key(ToolCall(call["name"], call["arguments"], ""))
