"""Calls that may be made in one state, as rows in which the call alone trains."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specs.records import Problem, ToolCall, Trajectory
from tasks.boundary import Failure, boundary
from tasks.learning.rows import TrainingRow
from tasks.loops.collect import Arena
from tasks.loops.judged_calls import Scored


@dataclass(frozen=True, slots=True)
class State:
    """A moment of a trajectory in which a call is made; `group` are the trajectories of its problem."""

    trajectory: Trajectory
    turn: int
    group: list[Trajectory]
    arena: Arena
    problem: Problem

    @property
    def prefix(self) -> list[int]:
        """Return the token ids before the call."""
        return self.trajectory.ids[: self.trajectory.turns[self.turn].start]

    def row(self, name: str, completion: Sequence[int]) -> TrainingRow:
        """Return a row in which the call alone trains."""
        ids = [*self.prefix, *completion]
        mask = [False] * len(self.prefix) + [True] * len(completion)
        return TrainingRow(
            f"{self.trajectory.id}@{self.turn}/{name}", "actions", ids, mask, trajectory=self.trajectory.id
        )

    def written(self, call: Mapping[str, Any]) -> list[int] | None:
        """Return the ids with which the policy itself wrote a call in this state."""
        before = self.trajectory.ids[: self.trajectory.turns[self.turn].start]
        for other in self.group:
            if len(other.turns) <= self.turn:
                continue
            turn = other.turns[self.turn]
            made = turn.call
            if made is None or made.error or turn.finish == "length" or other.ids[: turn.start] != before:
                continue
            if made.name == call["name"] and made.arguments == call["arguments"]:
                return other.ids[turn.start : turn.end]
        return None

    def rendered(self, call: Mapping[str, Any]) -> list[int] | None:
        """Return the ids of a call as the policy should write it; None where its tool does not take it."""
        text = boundary("call", lambda: self.arena.agent.write(ToolCall(call["name"], call["arguments"], "")))
        tools = self.arena.environments[self.problem.environment].tools(self.problem)
        if isinstance(text, Failure) or self.arena.agent.parse(text, tools).error:
            return None
        return self.arena.template.completion(text)


def states_of(
    own: Mapping[str, Trajectory], problems: Mapping[str, Problem], arena: Arena
) -> Callable[[str, int], State]:
    """Return what gives the state before a turn of a trajectory, by its id and the turn's number."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in own.values():
        groups.setdefault(trajectory.problem_id, []).append(trajectory)

    def state(name: str, turn: int) -> State:
        problem = own[name].problem_id
        return State(own[name], turn, groups[problem], arena, problems[problem])

    return state


def call_rows(state: State, scores: Scored, left_out: Counter[str], max_length: int) -> list[tuple[TrainingRow, float]]:
    """Return a row for each call that the policy can write, with its score; the others are counted."""
    found: list[tuple[TrainingRow, float]] = []
    for number, (call, score) in enumerate(scores):
        ids = state.written(call) or state.rendered(call)
        if ids is None:
            left_out["call_refused"] += 1
        elif len(state.prefix) + len(ids) > max_length:
            left_out["too_long"] += 1
        else:
            found.append((state.row(str(number), ids), score))
    return found
