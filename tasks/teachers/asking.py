"""Which questions a node asks about the policy's rollouts. What is not asked about is counted by reason."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specs.ladder import Asking
from specs.records import Problem, ToolCall, Trajectory
from tasks.protocols import ToolSchema
from tasks.teachers.asks import Ask

Tools = Callable[[Problem], Sequence[ToolSchema]]
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip


@dataclass(slots=True)
class _Questions:
    """Questions, and what none is asked about."""

    asks: list[Ask] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason -> trajectories or, for `rank`, problems."""


def asks_for(
    asking: Mapping[str, Any], trajectories: Sequence[Trajectory], problems: Mapping[str, Problem], tools: Tools
) -> tuple[list[Ask], dict[str, int]]:
    """Return the questions about the rollouts, problem after problem, and by reason what none is asked about.

    Never about what could not be run or judged; nor, where the policy did nothing that can be judged, about that: it is
    known what it is worth.
    """
    spec, found = Asking.model_validate(asking), _Questions()
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        reason = _nothing_to_say(trajectory)
        if reason is None:
            groups.setdefault(trajectory.problem_id, []).append(trajectory)
        else:
            found.skipped[reason] += 1
    for problem_id, members in groups.items():
        problem = problems[problem_id]
        _OF[spec.signal](found, spec, problem, tuple(tools(problem)), members)
    return found.asks, dict(sorted((+found.skipped).items()))


def empty(trajectory: Trajectory) -> bool:
    """Return whether the policy made no call that could be carried out: no teacher is needed to say what that is worth."""
    return not any(t.call is not None and t.call.error is None for t in trajectory.turns)


def _nothing_to_say(trajectory: Trajectory) -> str | None:
    if trajectory.status == "infrastructure":
        return "infrastructure"
    if trajectory.success is None or trajectory.reward is None:
        return "invalid"
    return None


Members = list[Trajectory]
Schemas = tuple[ToolSchema, ...]


def _score(found: _Questions, asking: Asking, problem: Problem, tools: Schemas, members: Members) -> None:
    for trajectory in members:
        if empty(trajectory):
            found.skipped["empty"] += 1
        else:
            dimensions = asking.dimensions if isinstance(asking.dimensions, dict) else tuple(asking.dimensions)
            found.asks.append(Ask("score", problem, tools, (trajectory,), dimensions=dimensions, scale=asking.scale))


def _critique(found: _Questions, asking: Asking, problem: Problem, tools: Schemas, members: Members) -> None:
    for trajectory in members:
        if trajectory.turns:
            found.asks.append(Ask("critique", problem, tools, (trajectory,)))
        else:
            found.skipped["empty"] += 1


def _sample(found: _Questions, asking: Asking, problem: Problem, tools: Schemas, members: Members) -> None:
    failed = [t for t in distinct(members) if not t.success]
    found.skipped["succeeded"] += sum(bool(t.success) for t in members)
    found.skipped["beyond_per_problem"] += max(0, len(failed) - asking.per_problem)
    kept = failed[: asking.per_problem]
    found.asks += [Ask("sample", problem, tools, (t,), sample=n) for t in kept for n in range(asking.samples)]


def _rank(found: _Questions, asking: Asking, problem: Problem, tools: Schemas, members: Members) -> None:
    shown = distinct(members)
    if len(shown) < 2:
        found.skipped["alike"] += 1
        return
    found.asks.append(Ask("rank", problem, tools, tuple(shown)))
    if asking.swaps:
        found.asks.append(Ask("rank", problem, tools, tuple(reversed(shown))))


def _action(found: _Questions, asking: Asking, problem: Problem, tools: Schemas, members: Members) -> None:
    states = states_of(members)
    ranked = sorted(states, key=lambda s: (-len(s.calls), s.turn)) if asking.choose == "disagreed" else states
    kept = ranked[: asking.states]
    found.skipped["beyond_states"] += len(states) - len(kept)
    for state in kept:
        calls = tuple(state.calls[: asking.candidates])
        found.skipped["beyond_candidates"] += len(state.calls) - len(calls)
        calls += tuple(from_tools(state, tools)[: asking.from_tools])
        ask = Ask(
            "action", problem, tools, (state.trajectory,), turn=state.turn, actions=calls, form=asking.form,
            scale=asking.scale,
        )  # fmt: skip
        found.asks.append(ask)
        if asking.form == "rank" and asking.swaps and len(calls) > 1:
            found.asks.append(replace(ask, actions=calls[::-1], swapped=True))


_OF: dict[str, Callable[[_Questions, Asking, Problem, Schemas, Members], None]] = {
    "score": _score, "critique": _critique, "sample": _sample, "rank": _rank, "action": _action,
}  # fmt: skip


@dataclass(slots=True)
class State:
    """A state that trajectories of a problem passed: what was done and observed before a turn is the same in all."""

    trajectory: Trajectory
    """The first that passed it."""
    turn: int
    calls: list[ToolCall] = field(default_factory=list)
    """What they did in it, each distinct call once, the most frequent first."""


def states_of(members: Sequence[Trajectory]) -> list[State]:
    """Return the states of one problem's trajectories, the early ones first."""
    states: dict[str, State] = {}
    counts: dict[str, Counter[str]] = {}
    written: dict[str, dict[str, ToolCall]] = {}
    for trajectory in members:
        for number, turn in enumerate(trajectory.turns):
            if turn.call is None or len(trajectory.segments) > 1:
                break
            state = state_key(trajectory, number)
            states.setdefault(state, State(trajectory, number))
            done = call_key(turn.call)
            counts.setdefault(state, Counter())[done] += 1
            written.setdefault(state, {}).setdefault(done, turn.call)
    for key, state in states.items():
        usable = [name for name, _ in counts[key].most_common() if written[key][name].error is None]
        state.calls = [written[key][name] for name in usable]
    return sorted(states.values(), key=lambda s: s.turn)


def from_tools(state: State, tools: Schemas) -> list[ToolCall]:
    """Return a call of each tool whose arguments the state names, in the order of the tools; without those that were made in it.

    A value goes by the argument's name: it stood in a call or a reply before, the last one counts, or stands in a sample's call.
    """
    known: dict[str, Any] = {}
    for call in reversed(state.calls):
        known |= call.arguments
    for turn in state.trajectory.turns[: state.turn]:
        known |= turn.call.arguments if turn.call is not None else {}
        known |= turn.observation.data if turn.observation is not None else {}
    made = {call_key(call) for call in state.calls}
    named = [t for t in tools if all(_named(known, name, t.parameters) for name in t.parameters.get("required", ()))]
    calls = [ToolCall(t.name, {name: known[name] for name in t.parameters.get("required", ())}, "") for t in named]
    return [call for call in calls if call_key(call) not in made]


def _named(known: Mapping[str, Any], name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether a value of that name is known, of the type and among the values that a tool wants."""
    wanted: Mapping[str, Any] = parameters.get("properties", {}).get(name, {})
    if name not in known or known[name] not in wanted.get("enum", [known[name]]):
        return False
    kinds = _JSON_TYPES.get(str(wanted.get("type")))
    return kinds is None or type(known[name]) in kinds


def state_key(trajectory: Trajectory, turn: int) -> str:
    """Return a text that is the same for the same history before a turn."""
    past = trajectory.turns[:turn]
    return json.dumps([[t.text, None if t.observation is None else t.observation.data] for t in past], sort_keys=True)


def call_key(call: ToolCall) -> str:
    """Return a text that is the same for the same call; of one that cannot be used, its words."""
    return call.written if call.error else json.dumps([call.name, call.arguments], sort_keys=True)


def distinct(members: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the trajectories that differ in what the policy wrote or the world replied, each once."""
    found = {state_key(t, len(t.turns)): t for t in reversed(members)}
    kept = {t.id for t in found.values()}
    return [t for t in members if t.id in kept]
