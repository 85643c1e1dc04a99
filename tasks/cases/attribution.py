"""Why a trajectory failed: rules over its turns, and over the clerk's solution in the very same world.

The first wrong turn is the first at which the policy and the clerk part, given the same history: the clerk is run
again in a world with the episode's own seed, so the same faults strike. Without that run (the world is gone) rules
over the trajectory alone remain, with less confidence. Rules name a cause and their evidence; what none of them knows
is `unknown`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specs.flywheel import Cause
from specs.records import Demonstration, Observation, Problem, ToolCall, Trajectory, Turn

Step = tuple[ToolCall, Observation]
REPEATS = 3
"""Times that a call has to give the same reply before it is a loop."""
_FORMAT = ("malformed_json", "not_an_object")


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with its evidence. `turn` is the first wrong one, from 0."""

    cause: Cause
    confidence: float
    turn: int | None
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])


def attribute(trajectory: Trajectory, problem: Problem | None, reference: Demonstration | None) -> Finding:
    """Return why a failed trajectory failed. `reference` is the clerk's run in the same world, where it can be had."""
    turns = trajectory.turns
    if (loop := _loop(trajectory)) is not None:
        return loop
    if reference is not None and reference.turns:
        return _against(trajectory, reference)
    return _alone(trajectory, problem) if turns else Finding("unknown", 0.0, None, {"turns": 0})


# -- rules that both ways share --------------------------------------------------------------------------------------


def _loop(trajectory: Trajectory) -> Finding | None:
    """Return a loop that lasted to the end: the same call got the same reply again and again."""
    if trajectory.status == "finished":
        return None
    seen: Counter[str] = Counter()
    first: dict[str, int] = {}
    for number, turn in enumerate(trajectory.turns):
        if turn.observation is None or turn.observation.injected:
            continue
        key = f"{turn.text.strip()}\n{turn.observation.data}"
        seen[key] += 1
        if seen[key] == 2:
            first[key] = number
    last = [k for k, n in seen.items() if n >= REPEATS and _is_last(trajectory, k)]
    if not last:
        return None
    evidence = {"call": last[0].partition("\n")[0][:200], "times": seen[last[0]], "status": trajectory.status}
    return Finding("loop", 0.95, first[last[0]], evidence)


def _is_last(trajectory: Trajectory, key: str) -> bool:
    """Return whether one of the last turns still made this call."""
    tail = trajectory.turns[-REPEATS:]
    return any(t.observation is not None and f"{t.text.strip()}\n{t.observation.data}" == key for t in tail)


def _unusable(turn: Turn) -> str | None:
    """Return why a turn holds no usable call; None where it does, and for words that are no call at all."""
    if turn.call is None:
        return "cut" if turn.finish == "length" else None
    return turn.call.error


def _misshapen(number: int, turn: Turn, error: str) -> Finding:
    """Return the cause of a turn without a usable call."""
    evidence = {"error": error, "written": turn.text[:200]}
    if error == "unknown_tool":
        return Finding("unknown_tool", 0.95, number, evidence)
    if error in (*_FORMAT, "cut"):
        return Finding("format", 0.95, number, evidence)
    return Finding("argument", 0.95, number, evidence)


# -- against the clerk -----------------------------------------------------------------------------------------------


def _against(trajectory: Trajectory, reference: Demonstration) -> Finding:
    """Return the first turn at which the policy did not do what the clerk did, and what that was."""
    steps = reference.turns
    at = 0
    pending: Finding | None = None
    for number, turn in enumerate(trajectory.turns):
        error = _unusable(turn)
        if error is not None:
            pending = pending or _misshapen(number, turn, error)
            continue
        if turn.call is None:  # some agents talk between their calls
            continue
        if at < len(steps) and _same(turn, steps[at], reference.problem):
            pending, at = None, at + 1  # a slip of the pen that was put right is no cause
            continue
        if pending is not None:
            return pending
        return _parting(trajectory, number, steps[at] if at < len(steps) else None, reference.problem)
    return pending or _same_as_clerk(trajectory, reference, at)


def _same(turn: Turn, step: Step, problem: Problem) -> bool:
    """Return whether a turn does what the clerk did; where no answer is asked for, one end is as good as another."""
    call, seen = step
    assert turn.call is not None, "asked of usable turns only"
    if turn.call.name != call.name:
        return False
    free = seen.done and problem.expected.get("answer") is None and "state" in problem.expected
    return free or turn.call.arguments == call.arguments


def _parting(trajectory: Trajectory, number: int, step: Step | None, problem: Problem) -> Finding:
    """Return what went wrong at the turn where policy and clerk part."""
    turn = trajectory.turns[number]
    assert turn.call is not None, "policy and clerk part at a usable call"
    if step is None:
        return Finding("wrong_tool", 0.6, number, {"made": _shown(turn.call), "expected": None})
    call, seen = step
    evidence = {"made": _shown(turn.call), "expected": _shown(call)}
    before = trajectory.turns[number - 1].observation if number else None
    if before is not None and before.is_error and not seen.done:
        again = (
            turn.call == trajectory.turns[number - 1].call
        )  # trying again may be right; then something else is wrong
        evidence |= {"error": before.data, "injected": before.injected}
        return Finding("error_recovery", 0.6 if again else 0.9, number, evidence)
    ends = turn.observation is not None and turn.observation.done
    if ends and not seen.done:
        return Finding("premature_stop", 0.9, number, evidence)
    if turn.call.name != call.name:
        return Finding("wrong_tool", 0.85, number, evidence)
    if ends and _was_told(trajectory, number, problem.expected.get("answer")):
        return Finding("observation_misread", 0.8, number, evidence)
    return Finding("argument", 0.9, number, evidence)


def _same_as_clerk(trajectory: Trajectory, reference: Demonstration, at: int) -> Finding:
    """Return the cause where every call was the clerk's: too few, no room left, or a world that cannot be solved."""
    evidence = {"status": trajectory.status, "right_calls": at, "of": len(reference.turns)}
    if at == len(reference.turns):
        return Finding("environment", 0.8, None, {**evidence, "reason": "the clerk's own calls fail here"})
    if trajectory.status in ("turn_limit", "truncated"):
        return Finding("long_horizon", 0.9, None, evidence)
    return Finding("premature_stop", 0.9, max(0, len(trajectory.turns) - 1), evidence)


def _was_told(trajectory: Trajectory, number: int, answer: Any) -> bool:
    """Return whether an observation before a turn held the answer."""
    earlier = (t.observation for t in trajectory.turns[:number])
    return answer is not None and any(o is not None and answer in map(str, o.data.values()) for o in earlier)


def _shown(call: ToolCall) -> dict[str, Any]:
    return {"tool": call.name, "arguments": call.arguments}


# -- without the clerk -----------------------------------------------------------------------------------------------


def _alone(trajectory: Trajectory, problem: Problem | None) -> Finding:
    """Return what the trajectory alone says: the last thing that went wrong and was not put right."""
    turns = trajectory.turns
    for number in range(len(turns) - 1, -1, -1):
        turn = turns[number]
        error = _unusable(turn)
        if error is not None:
            return _lowered(_misshapen(number, turn, error))
        if turn.observation is not None and turn.observation.is_error:
            return _bad_reply(turns, number, turn.observation)
        if turn.observation is not None and not turn.observation.done:
            break  # a call that worked: what came before it was put right
    if trajectory.status in ("turn_limit", "truncated"):
        return Finding("long_horizon", 0.5, None, {"status": trajectory.status, "turns": len(turns)})
    calls = sum(t.call is not None for t in turns)
    if problem is not None and trajectory.status == "finished" and calls < problem.min_calls:
        evidence = {"calls": calls, "shortest_solution": problem.min_calls}
        return Finding("premature_stop", 0.6, len(turns) - 1, evidence)
    return Finding("unknown", 0.0, None, {"status": trajectory.status})


def _bad_reply(turns: Sequence[Turn], number: int, seen: Observation) -> Finding:
    """Return the cause where the last reply before the end was an error."""
    evidence = {"error": seen.data, "injected": seen.injected}
    if seen.injected:
        return Finding("error_recovery", 0.7, min(number + 1, len(turns) - 1), evidence)
    return Finding("argument", 0.5, number, evidence)  # the call itself asked for what is not there


def _lowered(finding: Finding) -> Finding:
    return Finding(finding.cause, 0.7, finding.turn, finding.evidence)
