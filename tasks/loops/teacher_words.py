"""From a teacher's words about trajectories to examples and pairs: corrections that hold in the world, orders that agree."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specs.ladder import Ranking
from specs.records import NOT_TRAINED, Observation, Pair, Problem, Source, TeacherSignal, ToolCall, Trajectory, Turn
from tasks.boundary import Failure, boundary
from tasks.episodes.seeds import world_seed
from tasks.evidence.judge import judge
from tasks.learning.rows import TrainingRow
from tasks.loops.collect import Arena
from tasks.protocols import ToolSchema
from tasks.teachers import orders


@dataclass(slots=True)
class Taken:
    """What came of the signals of a node, and why others came to nothing."""

    trajectories: list[Trajectory] = field(default_factory=list)
    """Corrections; of an order, what was ordered."""
    pairs: list[Pair] = field(default_factory=list)
    signals: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> signals or, where an order is read, pairs."""
    disagreed: int = 0
    """Pairs whose order depended on the order in which they were shown."""
    agreed: int = 0
    used: set[str] = field(default_factory=set[str])
    """Signals of which something came, by id."""

    def add(self, other: "Taken") -> None:
        """Take in what came of another signal, about other problems."""
        self.trajectories += other.trajectories
        self.pairs += other.pairs
        self.signals += other.signals
        self.left_out.update(other.left_out)
        self.disagreed += other.disagreed
        self.agreed += other.agreed
        self.used |= other.used

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        asked = self.agreed + self.disagreed
        return {
            "signals": self.signals,
            "trajectories": len(self.trajectories),
            "pairs": len(self.pairs),
            "left_out": dict(sorted((+self.left_out).items())),
            "order_dependent": self.disagreed / asked if asked else None,
        }

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        lines = [f"{n} left out: {reason}" for reason, n in sorted((+self.left_out).items())]
        asked = self.agreed + self.disagreed
        if self.disagreed:
            lines.append(
                f"the order of {self.disagreed} of {asked} pairs depended on how they were shown: they are no pairs"
            )
        return lines


def said(signals: Iterable[TeacherSignal], left_out: Counter[str]) -> list[TeacherSignal]:
    """Return the signals that say something; the others are counted by the reason's first word."""
    found: list[TeacherSignal] = []
    for signal in signals:
        if signal.content is None:
            left_out[(signal.failure or "no answer").partition(":")[0]] += 1
        else:
            found.append(signal)
    return found


def behind(rows: Iterable[TrainingRow], signals: Iterable[TeacherSignal]) -> set[str]:
    """Return the ids of the answers about trajectories of which rows train."""
    trained = {row.trajectory for row in rows}
    return {s.id for s in signals if s.content is not None and s.trajectories[0] in trained}


# -- corrections -----------------------------------------------------------------------------------------------------


def corrections(
    signals: Sequence[TeacherSignal],
    own: Mapping[str, Trajectory],
    problems: Mapping[str, Problem],
    arena: Arena,
    max_length: int,
    keep: Literal["all", "best"] = "all",
) -> Taken:
    """Return the corrections that the program's verifiers call a success, each with its pair (correction, own).

    Of several of one trajectory those that differ are kept, or the best. The teacher's calls are made in the world of the episode, after the turns that it kept: observations are the world's
    and not the teacher's. What was kept keeps its token ids.
    """
    taken = Taken(signals=len(signals))
    held: dict[str, list[tuple[Trajectory, TeacherSignal]]] = {}
    for signal in said(signals, taken.left_out):
        trajectory = own[signal.trajectories[0]]
        made = _corrected(signal, trajectory, problems[signal.problem_id], arena)
        if isinstance(made, Trajectory):
            judge(made, problems[signal.problem_id], arena.verifiers, arena.reward)
            made = _verified(made, max_length)
        if isinstance(made, str):
            taken.left_out[made] += 1
        elif any(made.ids == other.ids for other, _ in held.get(trajectory.id, ())):
            taken.left_out["repeated"] += 1
        else:
            held.setdefault(trajectory.id, []).append((made, signal))
    for name, found in held.items():
        kept = found if keep == "all" else [max(found, key=lambda one: _worth(one[0]))]
        taken.left_out["not_the_best"] += len(found) - len(kept)
        for made, signal in kept:
            taken.trajectories.append(made)
            taken.used.add(signal.id)
            margin = (made.reward or 0.0) - (own[name].reward or 0.0)
            taken.pairs.append(Pair(f"{made.id}>{name}", signal.problem_id, made.id, name, margin, 1.0, signal.teacher))
    return taken


def _worth(made: Trajectory) -> tuple[float, int, int]:
    """Return what decides between corrections that hold: the reward, then fewer turns, then fewer tokens."""
    return made.reward or 0.0, -len(made.turns), -len(made.ids)


def _verified(made: Trajectory, max_length: int) -> Trajectory | str:
    if made.success is not True or made.status != "finished":
        return "correction_failed"
    return "too_long" if len(made.ids) > max_length else made


def _corrected(signal: TeacherSignal, own: Trajectory, problem: Problem, arena: Arena) -> Trajectory | str:
    """Return the correction as it went in the world, not yet judged; or why there is none."""
    assert signal.content is not None, "asked of signals that say something"
    keep = int(signal.content["keep"])
    if len(own.segments) > 1:
        return "several_contexts"
    environment = arena.environments[problem.environment]
    tools = environment.tools(problem)
    calls = [_usable(c, arena, tools) for c in signal.content["calls"]]
    if any(c.error for c in calls):
        return "call_refused"
    if keep >= len(own.turns) or keep + len(calls) > environment.max_turns:
        return "no_room"
    found = boundary(f"{problem.environment} correction", lambda: _played(own, problem, keep, calls, arena))
    if isinstance(found, Failure):
        return "infrastructure"
    return found if isinstance(found, str) else _record(signal, own, keep, found, arena)


def _usable(call: Mapping[str, Any], arena: Arena, tools: Sequence[ToolSchema]) -> ToolCall:
    """Return a teacher's call as the policy would write it; its `error` says why it cannot."""
    made = ToolCall(call["name"], call["arguments"], "")
    text = boundary("call", lambda: arena.agent.write(made))
    if isinstance(text, Failure):
        return replace(made, error="not_an_object")
    return replace(arena.agent.parse(text, tools), written=text)


@dataclass(frozen=True, slots=True)
class _Run:
    steps: list[tuple[ToolCall, Observation]]
    """From the first that is not kept."""
    final_state: dict[str, Any]
    answer: str | None
    ended: bool


def _played(own: Trajectory, problem: Problem, keep: int, calls: Sequence[ToolCall], arena: Arena) -> _Run | str:
    """Make the kept calls again and then the teacher's, in the world of the episode."""
    world = arena.environments[problem.environment].open(problem, world_seed(own.seed))
    try:
        for turn in own.turns[:keep]:
            if turn.call is None or turn.observation is None:
                return "kept_without_call"
            if turn.call.error is None and world.call(turn.call).data != turn.observation.data:
                return "world_differs"
        steps: list[tuple[ToolCall, Observation]] = []
        for call in calls:
            steps.append((call, world.call(call)))
            if world.done:
                break
        return _Run(steps, world.final_state(), world.answer, world.done)
    finally:
        world.close()


def _record(signal: TeacherSignal, own: Trajectory, keep: int, run: _Run, arena: Arena) -> Trajectory:
    start = own.turns[keep].start
    ids, sources, logprobs = own.ids[:start], own.sources[:start], own.logprobs[:start]
    turns = own.turns[:keep]

    def append(source: Source, tokens: list[int]) -> None:
        ids.extend(tokens)
        sources.extend([int(source)] * len(tokens))
        logprobs.extend([0.0] * len(tokens))

    for number, (call, observation) in enumerate(run.steps):
        begin = len(ids)
        append(Source.POLICY, arena.template.completion(call.written))
        turns = [*turns, Turn(begin, len(ids), call.written, call, observation)]
        if number < len(run.steps) - 1:
            for source, tokens in arena.template.observation(observation, cut=False):
                append(source, tokens)
    number = f"#{signal.sample}" if signal.sample else ""
    return replace(
        own, id=f"corrected/{own.id}{number}", ids=ids, sources=sources, logprobs=logprobs, turns=turns, policy_versions=[],
        status="finished" if run.ended else "turn_limit", sampling={"kept_turns": keep}, final_state=run.final_state,
        answer=run.answer, verdicts=[], success=None, reward=None, reward_parts={}, latency={},
        origin=f"correction/{signal.teacher}", tags=[*own.tags, "corrected"],
    )  # fmt: skip


# -- orders ----------------------------------------------------------------------------------------------------------


def ordered(signals: Sequence[TeacherSignal], own: Mapping[str, Trajectory], spec: Ranking) -> Taken:
    """Return pairs of what a teacher called better and worse.

    With `swaps` a pair counts where both orders of showing agree on it. A pair in which a failure is called better than a
    success goes against the verifiers, and they are right.
    """
    taken = Taken(signals=len(signals))
    problems: dict[str, list[TeacherSignal]] = defaultdict(list)
    for signal in said(signals, taken.left_out):
        problems[signal.problem_id].append(signal)
    for problem_id, answers in problems.items():
        if spec.swaps and len(answers) < 2:
            taken.left_out["one_order_alone"] += 1
            continue
        made = _pairs(_agreed(answers, taken), own, taken)
        chosen = made if spec.choose == "all" else made[:1]
        by = answers[0].teacher
        taken.used |= {answer.id for answer in answers if chosen}
        taken.pairs += [Pair(f"{a}>{b}", problem_id, a, b, gap, 1 / len(chosen), by) for a, b, gap in chosen]
    used = {side for pair in taken.pairs for side in (pair.chosen, pair.rejected)}
    taken.trajectories = [t for name, t in own.items() if name in used]
    return taken


def _agreed(answers: Sequence[TeacherSignal], taken: Taken) -> dict[tuple[str, str], float]:
    """Return the pairs (better, worse) on which all answers agree, with their mean distance in tiers."""
    both, apart = orders.agreed([(answer.content or {})["tiers"] for answer in answers])
    taken.agreed += len(both)
    taken.disagreed += apart
    return both


def _pairs(
    agreed: Mapping[tuple[str, str], float], own: Mapping[str, Trajectory], taken: Taken
) -> list[tuple[str, str, float]]:
    """Return the pairs that may train, the clearest first."""
    kept: list[tuple[str, str, float]] = []
    for (a, b), gap in agreed.items():
        better, worse = own[a], own[b]
        if NOT_TRAINED in (*better.tags, *worse.tags):
            taken.left_out["token_drift"] += 1
        elif better.status == "truncated":
            taken.left_out["chosen_was_cut"] += 1
        elif worse.success and not better.success:
            taken.left_out["against_the_verifiers"] += 1
        else:
            kept.append((a, b, gap))
    return sorted(kept, key=lambda pair: (-pair[2], pair[0], pair[1]))
