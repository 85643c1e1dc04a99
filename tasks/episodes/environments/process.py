"""A world of the user's own: a program that draws problems and runs worlds, asked in JSON lines.

What it says is checked before it is believed. Where it fails, the episode that met it ends as `infrastructure` with
the evidence; worlds that a program held when it ended are lost, later ones open in the next start.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from specs.environments import ProcessEnvironment as ProcessSpec
from specs.errors import DataError, ProgramError, RolloutError
from specs.problems import misfit
from specs.records import Demonstration, Observation, Problem, ToolCall, to_dict
from tasks.linechild import LineChild, LineError
from tasks.ownprogram import launch_of
from tasks.protocols import ToolSchema

_FLAGS = ("is_error", "done", "changed", "informed", "injected")
_NEEDED = ("id", "type", "text", "world", "expected")
_OPTIONAL = ("tags", "min_calls", "tools")
_SHOWN = 200


class ProcessEnvironment:
    """An environment that is a program. Its worlds may be open at the same time."""

    def __init__(self, name: str, spec: ProcessSpec) -> None:
        self._name, self._spec = name, spec
        self._child = LineChild(launch_of(f"environments.{name}", spec), "environment")
        self._worlds = itertools.count(1)
        self._tools: list[ToolSchema] | None = None

    @property
    def version(self) -> str:
        """Return the version of this protocol and the one that the program reports."""
        return f"process@{ProcessSpec.version}/{self._child.version}"

    @property
    def max_turns(self) -> int:
        """Return after how many turns an episode ends unfinished."""
        return self._spec.max_turns

    def problems(self, split: str, size: int, seed: int) -> list[Problem]:
        """Return `size` problems of a split, no two with the same id; DataError where it cannot give as many."""
        found = self._told("problems", {"split": split, "size": size, "seed": seed}).get("problems")
        if not isinstance(found, list) or len(found) != size:
            number = len(found) if isinstance(found, list) else "no list"
            raise DataError(
                f"environments.{self._name}: asked for {size} problems of split {split} it gave {number}; "
                "ask for fewer (data.*.size), or mend the program"
            )
        made = [self._problem(data, split) for data in found]
        if len({p.id for p in made}) < size:
            raise DataError(f"environments.{self._name}: problems of split {split} share an id; each needs its own")
        return made

    def tools(self, problem: Problem | None = None) -> list[ToolSchema]:
        """Return the tools of a problem, else those that every problem has."""
        if problem is not None and problem.tools is not None:
            return [self._tool(t) for t in problem.tools]
        if self._tools is None:
            given = self._child.greeting.get("tools")
            if not isinstance(given, list):
                raise ProgramError(f"environments.{self._name}: hello gave no list of tools; expected `tools`: [...]")
            self._tools = [self._tool(t) for t in given]
        return list(self._tools)

    def open(self, problem: Problem, seed: int) -> "ProcessWorld":
        """Return a fresh world; DataError where the program says that it cannot use the problem."""
        number = f"w{next(self._worlds)}"
        self._told("open", {"world": number, "problem": to_dict(problem), "seed": seed})
        return ProcessWorld(self._name, self._child, number, self._spec.events)

    def demonstrate(
        self, problem: Problem, seed: int, mistakes: float = 0.0, *, recovers: bool = True
    ) -> Demonstration:
        """Return the program's own solution. ProgramError where it has said that it makes none."""
        if self._child.greeting.get("demonstrates") is not True:
            raise ProgramError(
                f"environments.{self._name}: its program makes no demonstrations (hello without demonstrates: true), so "
                "no data set of kind demonstrations can come from it; use problems, or teach it to `demonstrate`"
            )
        question = {"problem": to_dict(problem), "seed": seed, "mistakes": mistakes, "recovers": recovers}
        told = self._told("demonstrate", question)
        try:
            turns = [(_call(t["call"]), _observation(t["observation"], self._spec.events)) for t in told["turns"]]
            return Demonstration(
                problem, turns, "clerk", spoiled=told.get("spoiled", False) is True,
                final_state=_state(told["final_state"]), answer=_answer(told.get("answer")),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as e:
            raise DataError(
                f"environments.{self._name}: a demonstration of {problem.id} that cannot be used: {e}"
            ) from e

    def sibling(self, problem: Problem, seed: int) -> Problem:
        """Return another training problem of the same type. DataError where the program makes none."""
        if self._child.greeting.get("siblings") is not True:
            raise DataError(
                f"environments.{self._name}: no sibling of problem {problem.id!r} can be made: its program makes none "
                "(hello without siblings: true); choose ask_person or ticket as the remedy"
            )
        made = self._problem(self._told("sibling", {"problem": to_dict(problem), "seed": seed}).get("problem"), "train")
        if made.type != problem.type or made.id == problem.id:
            raise DataError(f"environments.{self._name}: the sibling of {problem.id!r} is the same, or of another type")
        return made

    def close(self) -> None:
        """End the program."""
        self._child.close()

    def _told(self, do: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer; what the program refuses is a DataError with its words, the rest a RolloutError."""
        try:
            return self._child.ask(do, question)
        except LineError as e:
            raise (DataError if e.kind == "refused" else RolloutError)(str(e)) from e

    def _problem(self, data: Any, split: str) -> Problem:
        where = f"environments.{self._name}: a problem"
        if not isinstance(data, dict):
            raise DataError(f"{where} that is {type(data).__name__}, expected an object")
        called = str(data.get("id"))[:_SHOWN]
        for key in _NEEDED:
            if key not in data:
                raise DataError(f"{where} {called!r} without `{key}`")
        given = {k: data[k] for k in (*_NEEDED, *_OPTIONAL) if k in data}
        if (wrong := misfit(given)) is not None:
            raise DataError(f"{where} {called!r} of which {wrong}")
        return Problem(environment=self._name, split=split, **given)

    def _tool(self, data: Any) -> ToolSchema:
        try:
            name, about, parameters = data["name"], data.get("description", ""), data["parameters"]
        except (KeyError, TypeError, AttributeError):
            name = about = parameters = None
        if not (isinstance(name, str) and name and isinstance(about, str) and isinstance(parameters, dict)):
            raise ProgramError(
                f"environments.{self._name}: found the tool {str(data)[:_SHOWN]}, expected name, description and "
                "parameters (a JSON schema object)"
            )
        return ToolSchema(name, about, parameters)


class ProcessWorld:
    """One world of the program's; single use."""

    def __init__(self, name: str, child: LineChild, number: str, events: list[str]) -> None:
        self._name, self._child, self._number, self._events = name, child, number, events
        self._started = child.starts
        self._state: dict[str, Any] | None = None
        self._closed = False
        self.done = False
        self.answer: str | None = None

    def call(self, call: ToolCall) -> Observation:
        """Carry out one call. RolloutError where the program fails or answers what no world may say."""
        if self.done or self._state is not None or self._closed:
            return Observation({"error": "the episode has ended"}, is_error=True, done=True)
        told = self._ask("call", call={"name": call.name, "arguments": call.arguments})
        found = self._read(lambda: _observation(told, self._events))
        self.done = found.done
        self.answer = self._read(lambda: _answer(told.get("answer")))
        return found

    def final_state(self) -> dict[str, Any]:
        """Return the sealed state."""
        if self._state is not None:
            return self._state
        told = self._ask("final_state")
        state: dict[str, Any] = self._read(lambda: _state(told["state"]))
        answer = self._read(lambda: _answer(told.get("answer")))
        self.answer = answer if answer is not None else self.answer
        self._state = state
        return state

    def close(self) -> None:
        """Have the program forget the world; one that is lost is forgotten already."""
        if self._closed or not self._child.holds(self._started):
            return
        self._closed = True
        self._ask("close")

    def _ask(self, do: str, **question: Any) -> dict[str, Any]:
        try:
            return self._child.ask(do, {"world": self._number, **question}, started=self._started)
        except LineError as e:
            raise RolloutError(str(e)) from e

    def _read(self, read: Any) -> Any:
        try:
            return read()
        except (KeyError, TypeError, ValueError) as e:
            raise RolloutError(f"environments.{self._name}: an answer that cannot be used: {e}") from e


def _observation(told: Any, events: list[str]) -> Observation:
    """Return the observation in an answer. ValueError for what no world may say."""
    if not isinstance(told, dict) or not isinstance(told.get("data"), dict):
        raise TypeError("an observation without `data`, expected an object")
    flags = {name: told.get(name, False) for name in _FLAGS}
    if not all(isinstance(v, bool) for v in flags.values()):
        raise ValueError(f"an observation with flags {flags}, expected true or false")
    event = told.get("event")
    if event is not None and event not in events:
        raise ValueError(f"the event {event!r} is not declared; expected one of {events} (environments.*.events)")
    return Observation(told["data"], event=event, **flags)


def _call(data: Any) -> ToolCall:
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("name"), str)
        or not isinstance(data.get("arguments"), dict)
    ):
        raise TypeError(f"the call {str(data)[:_SHOWN]}, expected name and arguments")
    return ToolCall(data["name"], data["arguments"], written="")


def _state(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise TypeError(f"the final state is {type(data).__name__}, expected an object")
    return data


def _answer(data: Any) -> str | None:
    if data is not None and not isinstance(data, str):
        raise TypeError(f"the answer is {type(data).__name__}, expected a text or null")
    return data
