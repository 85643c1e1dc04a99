"""What every environment owes, as checks that can be run on any of them: `tutelage check FILE --contract NAME`."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from specs.data import Split
from specs.errors import DataError, ProgramError, TutelageError
from specs.records import Observation, Problem, ToolCall
from tasks.boundary import Failure, boundary
from tasks.episodes.schemas import argument_error, check_tools
from tasks.protocols import Environment, World

_DRAWN = 6
_WORDS = ("done", "yes", "7", "")


@dataclass(slots=True)
class Finding:
    """What a check found; `ok` None: not applicable."""

    check: str
    ok: bool | None
    text: str = ""


@dataclass(slots=True)
class _Bench:
    """An environment with a few of its problems."""

    environment: Environment
    call_format: str
    problems: list[Problem] = field(default_factory=list[Problem])


class _Broken(TutelageError):
    """The environment does not keep its contract."""


class _NotApplicable(TutelageError):
    """The environment does not offer what the check is about."""


def contract(environment: Environment, call_format: str) -> list[Finding]:
    """Return one finding per check; none raises, whatever the environment does."""
    bench = _Bench(environment, call_format)
    return [_run(name, check, bench) for name, check in _CHECKS.items()]


def _run(name: str, check: Callable[[_Bench], str | None], bench: _Bench) -> Finding:
    found = boundary(name, lambda: check(bench))
    if not isinstance(found, Failure):
        return Finding(name, True, found or "")
    if found.kind == _NotApplicable.__name__:
        return Finding(name, None, found.message)
    own = found.kind == _Broken.__name__ or issubclass_of_ours(found.kind)
    return Finding(name, False, found.message if own else f"{found.kind}: {found.message} ({found.place})")


def issubclass_of_ours(kind: str) -> bool:
    """Say whether a class of that name is one of the product's errors, whose text says all."""
    return kind in {c.__name__ for c in TutelageError.__subclasses__()}


def _draws(bench: _Bench) -> str:
    environment = bench.environment
    first, again = (environment.problems("train", _DRAWN, 3) for _ in range(2))
    if first != again:
        raise _Broken("the same split, size and seed gave other problems the second time")
    if environment.problems("train", _DRAWN // 2, 3) != first[: _DRAWN // 2]:
        raise _Broken("a longer draw does not begin with the shorter one of the same seed")
    bench.problems = first
    other = {p.id for p in environment.problems("train", _DRAWN, 4)}
    return f"{_DRAWN} problems" + ("" if other != {p.id for p in first} else "; another seed gives the same ones")


def _splits(bench: _Bench) -> str:
    seen: dict[str, str] = {}
    offered: list[str] = []
    for split in get_args(Split):
        try:
            drawn = bench.environment.problems(split, _DRAWN, 5)
        except DataError:
            continue
        offered.append(split)
        for problem in drawn:
            if seen.setdefault(problem.id, split) != split:
                raise _Broken(f"problem {problem.id} is in {seen[problem.id]} and in {split}: what trains cannot judge")
    try:
        bench.environment.problems("no-such-split", 1, 0)
    except DataError:
        return f"offers {', '.join(offered)}"
    raise _Broken("it drew problems of the split no-such-split; expected an error that names the splits it has")


def _tools(bench: _Bench) -> str:
    names: set[str] = set()
    for problem in _problems(bench):
        tools = bench.environment.tools(problem)
        check_tools(tools, bench.call_format)
        if len({t.name for t in tools}) < len(tools) or not tools:
            raise _Broken(f"problem {problem.id} has no tools, or two of the same name")
        names |= {t.name for t in tools}
    return f"{len(names)} tools"


def _problems(bench: _Bench) -> list[Problem]:
    if not bench.problems:
        raise ProgramError("no problem could be drawn")
    return bench.problems


def _seeded(bench: _Bench) -> str:
    for number, problem in enumerate(_problems(bench)):
        twice = [_babble(bench, problem, number) for _ in range(2)]
        if twice[0] != twice[1]:
            raise _Broken(f"problem {problem.id}: the same calls and seed gave another trajectory the second time")
    return "same seed, same trajectory"


def _babble(bench: _Bench, problem: Problem, seed: int) -> tuple[list[Observation], dict[str, Any], str | None]:
    """Return what a world says to calls that fit its tools, and how it ends."""
    calls = _calls(bench, problem, random.Random(seed))
    world = bench.environment.open(problem, seed)
    found = [world.call(c) for c in calls if not world.done]
    state = world.final_state()
    json.dumps(state, allow_nan=False)
    world.close()
    return found, state, world.answer


def _calls(bench: _Bench, problem: Problem, rng: random.Random) -> list[ToolCall]:
    """Return calls of its own solution without the last one, where it has any, and random ones that fit its tools."""
    solved = boundary("demonstrate", lambda: bench.environment.demonstrate(problem, 0))
    made = [] if isinstance(solved, Failure) else [c for c, _ in solved.turns[:-1]]
    words = [*_WORDS, *problem.text.split()]
    for _ in range(2 * bench.environment.max_turns):
        tool = rng.choice(bench.environment.tools(problem))
        properties: dict[str, Any] = tool.parameters.get("properties", {})
        arguments = {k: _value(schema, words, rng) for k, schema in properties.items()}
        if argument_error(arguments, tool.parameters) is None:
            made.append(ToolCall(tool.name, arguments, written=""))
    return made


def _value(schema: dict[str, Any], words: list[str], rng: random.Random) -> Any:
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    values: dict[str, Any] = {
        "integer": rng.randint(1, 9), "number": rng.random(), "boolean": rng.random() < 0.5, "array": [], "object": {},
    }  # fmt: skip
    return values.get(str(schema.get("type")), rng.choice(words))


def _single_use(bench: _Bench) -> str:
    problem = bench.environment.problems("train", 1, 11)[0]  # one that no other check has touched
    open_world = bench.environment.open
    first, second = open_world(problem, 0), open_world(problem, 0)
    untouched = second.final_state()
    calls = _calls(bench, problem, random.Random(1))
    for call in calls:
        if not first.done:
            first.call(call)
    sealed = json.dumps(first.final_state(), sort_keys=True)
    if calls and not first.call(calls[0]).is_error:
        raise _Broken("a world took a call after its final state was read; expected an error")
    if json.dumps(first.final_state(), sort_keys=True) != sealed:
        raise _Broken("the final state moved after it was sealed")
    _close(first, second)
    third = open_world(problem, 0)
    if third.final_state() != untouched:
        raise _Broken("a world that was opened later is not fresh: worlds share something")
    _close(third)
    return "worlds share nothing and are sealed"


def _close(*worlds: World) -> None:
    for world in worlds:
        world.close()
        world.close()


def _bounded(bench: _Bench) -> str:
    most = bench.environment.max_turns
    for problem in _problems(bench):
        if problem.min_calls > most:
            raise _Broken(f"problem {problem.id} takes {problem.min_calls} calls, but max_turns is {most}")
        state = problem.expected.get("state")
        world = bench.environment.open(problem, 0)
        same = isinstance(state, dict) and problem.expected.get("answer") is None and world.final_state() == state
        _close(world)
        if same:
            raise _Broken(f"problem {problem.id} is solved before anything was done")
    return f"solvable within {most} turns by what it says, and not by doing nothing"


def _demonstrates(bench: _Bench) -> str:
    most = bench.environment.max_turns
    for problem in _problems(bench):
        try:
            made = bench.environment.demonstrate(problem, 1)
        except ProgramError as e:
            raise _NotApplicable(str(e)) from e
        if made != bench.environment.demonstrate(problem, 1):
            raise _Broken(f"problem {problem.id}: the same seed gave another demonstration")
        if not made.turns or len(made.turns) > most:
            raise _Broken(f"problem {problem.id}: its demonstration has {len(made.turns)} turns, max_turns is {most}")
        state = problem.expected.get("state")
        if not made.spoiled and state is not None and made.final_state != state:
            raise _Broken(f"problem {problem.id}: its demonstration does not end in the expected state")
        _replayed(bench, problem, [c for c, _ in made.turns], made.final_state)
    return "its own solutions solve its problems, also when their calls are made again"


def _replayed(bench: _Bench, problem: Problem, calls: list[ToolCall], state: dict[str, Any] | None) -> None:
    world = bench.environment.open(problem, 1)
    for call in calls:
        if not world.done:
            world.call(call)
    found = world.final_state()
    _close(world)
    if found != state:
        raise _Broken(f"problem {problem.id}: the calls of its demonstration, made again, end in another state")


def _siblings(bench: _Bench) -> str:
    for problem in _problems(bench):
        try:
            made = bench.environment.sibling(problem, 1)
        except DataError as e:
            raise _NotApplicable(str(e)) from e
        if made.type != problem.type or made.id == problem.id or made.split != "train":
            raise _Broken(f"the sibling of {problem.id} is {made.id} of type {made.type} and split {made.split}")
        _close(bench.environment.open(made, 0))
    return "of the same type, and they open"


_CHECKS: dict[str, Callable[[_Bench], str | None]] = {
    "problems are drawn by seed": _draws,
    "splits are apart": _splits,
    "tools can be called": _tools,
    "trajectories are seeded": _seeded,
    "worlds are single-use": _single_use,
    "problems end within max_turns": _bounded,
    "demonstrations": _demonstrates,
    "siblings": _siblings,
}
