"""The clerk as a teacher: an environment's own solver says what it would have done in the very world of an episode.

It is run again in a world with the episode's seed, so the same faults strike. Policy and clerk go together as long as
their calls are the same; the first turn at which they part is the first error, and beyond it the clerk cannot follow.
Where a problem asks for no answer one end is as good as another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specs.records import Demonstration, Problem, ToolCall, Trajectory
from specs.teachers import ScriptedTeacher
from tasks.protocols import Environment
from tasks.teachers.asks import Ask, call_data
from tasks.teachers.reading import Unreadable

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Walked:
    """A trajectory beside the clerk's own solution in the same world."""

    solution: Demonstration
    together: int
    """Turns, from the first, in which both did the same."""

    @property
    def solved(self) -> bool:
        """Return whether the policy did all that the clerk did."""
        return self.together == len(self.solution.turns)


def answer(ask: Ask, environment: Environment, world_seed: Callable[[int], int]) -> Json:
    """Return what the clerk says, in the words of the prompt's form. Unreadable where it cannot say anything."""
    walks = [_walk(t, ask.problem, environment, world_seed) for t in ask.candidates]
    match ask.signal:
        case "score":
            given = dict(zip(ScriptedTeacher.scores, _worth(walks[0], ask.candidates[0]), strict=True))
            if strange := [name for name in ask.dimensions if name not in given]:
                raise Unreadable(f"a clerk scores {' and '.join(given)}, not {', '.join(strange)}")
            return {"score": {name: _scaled(given[name], ask.scale) for name in ask.dimensions}}
        case "rank":
            return {"order": _order(ask.names, [_worth(w, t) for w, t in zip(walks, ask.candidates, strict=True)])}
        case "critique":
            return {"turns": _labels(walks[0], ask.candidates[0])}
        case "sample":
            walked = walks[0]
            keep = min(walked.together, len(walked.solution.turns) - 1)
            return {"keep": keep, "calls": [call_data(c) for c, _ in walked.solution.turns[keep:]]}
        case "action":
            said = _actions(ask, walks[0])
            if ask.form == "score":
                return said
            return {"order": _order(ask.names, [(said["score"][n], 0.0) for n in ask.names]), "best": said["best"]}
        case "logprobs":
            raise Unreadable("a clerk has no probabilities")


def _walk(
    trajectory: Trajectory, problem: Problem, environment: Environment, world_seed: Callable[[int], int]
) -> _Walked:
    solution = environment.demonstrate(problem, world_seed(trajectory.seed))
    together = 0
    for turn, (call, _) in zip(trajectory.turns, solution.turns, strict=False):
        if turn.call is None or turn.call.error is not None:
            break
        if not _same(turn.call, call, solution, together):
            break
        together += 1
    return _Walked(solution, together)


def _same(made: ToolCall, right: ToolCall, solution: Demonstration, at: int) -> bool:
    """Return whether a call is the clerk's; at an end without an answer to give, its name is enough."""
    if made.name != right.name:
        return False
    expected = solution.problem.expected
    free = solution.turns[at][1].done and expected.get("answer") is None and "state" in expected
    return free or made.arguments == right.arguments


def _worth(walked: _Walked, trajectory: Trajectory) -> tuple[float, float]:
    """Return what a trajectory came to (a third for the way, two for state and answer), and the share of its calls that were taken."""
    right = walked.solution
    way = walked.together / len(right.turns)
    if walked.together < min(len(right.turns), len(trajectory.turns)):
        call, wanted = trajectory.turns[walked.together].call, right.turns[walked.together][0]
        way += 0.5 * (call is not None and call.error is None and call.name == wanted.name) / len(right.turns)
    same_answer = right.problem.expected.get("answer") is None or trajectory.answer == right.answer
    met = trajectory.status == "finished" and trajectory.final_state == right.final_state and same_answer
    taken = sum(t.observation is not None and not t.observation.is_error for t in trajectory.turns)
    return (way + 2 * met) / 3, taken / max(1, len(trajectory.turns))


def _scaled(value: float, scale: int) -> float:
    return round(value * scale, 3)


def _order(names: Sequence[str], worth: Sequence[tuple[float, float]]) -> list[Any]:
    tiers: dict[tuple[float, float], list[str]] = {}
    for name, value in sorted(zip(names, worth, strict=True), key=lambda pair: (-pair[1][0], -pair[1][1], pair[0])):
        tiers.setdefault(value, []).append(name)
    return [tier[0] if len(tier) == 1 else tier for tier in tiers.values()]


def _labels(walked: _Walked, trajectory: Trajectory) -> list[Json]:
    """Return a label for each turn; what follows the first error is bad where it failed, else of no matter."""
    found: list[Json] = []
    for number, turn in enumerate(trajectory.turns):
        entry: Json = {"turn": number + 1, "label": "good", "correction": None}
        if number == walked.together and not walked.solved:
            call, _ = walked.solution.turns[number]
            entry |= {"label": "first_error", "correction": call_data(call)}
        elif number >= walked.together:
            failed = turn.observation is None or turn.observation.is_error
            entry["label"] = "bad" if failed else "neutral"
        found.append(entry)
    return found


def _actions(ask: Ask, walked: _Walked) -> Json:
    """Return 1 for the clerk's own call, a little for its tool with other arguments, else 0."""
    assert ask.turn is not None, "actions are asked for in a state"
    if ask.turn > walked.together or (walked.solved and ask.turn >= len(walked.solution.turns)):
        raise Unreadable("the policy has left the clerk's way before this turn")
    right, _ = walked.solution.turns[ask.turn]
    scored: Json = {}
    for name, call in zip(ask.names, ask.actions, strict=True):
        same = call.error is None and _same(call, right, walked.solution, ask.turn)
        near = call.error is None and call.name == right.name
        scored[name] = ask.scale * (1.0 if same else 0.2 if near else 0.0)
    return {"score": scored, "best": call_data(right)}
