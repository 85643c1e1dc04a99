"""What rules of the routing can know where a question is asked: the problem, how its rollouts ended, the state."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from specs.records import Problem, Trajectory
from specs.routing import Route
from specs.when import ROUTING_NAMES, STATE_NAMES, mentioned, parse, problem_values
from tasks.teachers.asks import Ask
from tasks.teachers.routing import Place

Json = dict[str, Any]


def by_state(routing: Iterable[Route]) -> bool:
    """Return whether a rule names the state, so that questions about one problem may go to different teachers."""
    conditions = [parse(r.when, ROUTING_NAMES) for r in routing if r.when is not None]
    return any(name in STATE_NAMES for c in conditions for name in mentioned(c))


def places(asks: Sequence[Ask], trajectories: Sequence[Trajectory], *, states: bool) -> list[Place]:
    """Return the problems that are asked about, or with `states` all questions, with what is known of each."""
    known = known_of(trajectories, {ask.problem.id: ask.problem for ask in asks})
    found: dict[str, Place] = {}
    for ask in asks:
        problem = ask.problem
        place = ask.id if states else problem.id
        found.setdefault(place, Place(place, problem, known[problem.id] | (_state(ask) if states else {})))
    return list(found.values())


def known_of(trajectories: Sequence[Trajectory], problems: Mapping[str, Problem]) -> dict[str, Json]:
    """Return what rules can know of each problem of which a rollout has been judged."""
    own, of_type = _successes(trajectories, "problem_id"), _successes(trajectories, "problem_type")
    return {
        name: problem_values(problem)
        | {"history.problem_success": own[name], "history.type_success": of_type[problem.type]}
        for name, problem in problems.items()
        if name in own
    }


def _successes(trajectories: Sequence[Trajectory], field: str) -> dict[str, float]:
    """Return the share of judged trajectories that succeeded, by a field of theirs."""
    judged: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        if trajectory.success is not None:
            judged.setdefault(getattr(trajectory, field), []).append(trajectory.success)
    return {name: fmean(successes) for name, successes in judged.items()}


def _state(ask: Ask) -> Json:
    assert ask.turn is not None, "rules that name the state are for questions about states alone"
    before = ask.candidates[0].turns[: ask.turn]
    failed = [t.observation is None or t.observation.is_error for t in before]
    last = before[-1].call if before else None
    return {
        "state.turn": ask.turn + 1,
        "state.last_tool": last.name if last is not None else "",
        "state.last_tool_failed": failed[-1] if failed else False,
        "state.tool_errors": sum(failed),
    }
