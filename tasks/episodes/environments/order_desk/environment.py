"""The order desk as an environment: draws problems, opens desks, and has the clerk solve them."""

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

from specs.environments import OrderDesk
from specs.errors import DataError, ProgramError, RolloutError
from specs.records import Demonstration, Observation, Problem, ToolCall
from tasks.episodes.environments.order_desk import problems as types
from tasks.episodes.environments.order_desk.clerk import clerk
from tasks.episodes.environments.order_desk.desk import DISCOUNT_LIMIT, LETTERS, NOTICES, Desk
from tasks.episodes.environments.order_desk.entities import SPLIT_SHARES
from tasks.protocols import ToolSchema

_TEXT: dict[str, Any] = {"type": "string"}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 1}
_SIBLING_DRAWS = 200


def _tool(name: str, description: str, /, **properties: dict[str, Any]) -> ToolSchema:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return ToolSchema(name, description, parameters)


TOOLS = (
    _tool("find_customer", "Return the handle of a customer.", name=_TEXT),
    _tool("find_order", "Return an order's customer, product, quantity and status.", order=_TEXT),
    _tool("check_stock", "Say whether there is enough, else name a substitute.", product=_TEXT, quantity=_WHOLE),
    _tool("create_order", "Place an order.", customer=_TEXT, product=_TEXT, quantity=_WHOLE),
    _tool("cancel_order", "Cancel an order that has not shipped.", order=_TEXT),
    _tool("send_mail", f"Send a letter: {', '.join(LETTERS + NOTICES)}.", customer=_TEXT, letter=_TEXT),
    _tool("finish", "End with an answer.", answer=_TEXT),
)
DISCOUNT = _tool(
    "apply_discount",
    f"Reduce an order's price; more than {DISCOUNT_LIMIT} percent needs an authority that the desk has not.",
    order=_TEXT,
    percent=_WHOLE,
)


class OrderDeskEnvironment:
    """Problems of the order desk. Where no types are declared the training split draws long jobs more often."""

    version = f"order_desk@{OrderDesk.version}"

    def __init__(self, name: str, spec: OrderDesk) -> None:
        tools = {t.name for t in (*TOOLS, DISCOUNT)} - {"finish"} | {"*"}
        for fault in spec.faults:
            if fault.tool not in tools:
                raise ProgramError(
                    f"environments.{name}.faults: there is no tool {fault.tool!r} that could fail; "
                    f"expected one of {', '.join(sorted(tools))}"
                )
        self._name, self._spec = name, spec
        discounts = spec.adversarial > 0 or "discount" in (spec.types or ())
        self._tools = [*TOOLS[:-1], DISCOUNT, TOOLS[-1]] if discounts else list(TOOLS)

    @property
    def max_turns(self) -> int:
        """Return after how many turns an episode ends unfinished."""
        return self._spec.max_turns

    def problems(self, split: str, size: int, seed: int) -> list[Problem]:
        """Return `size` problems of a split, no two the same in text and world; DataError where it has fewer."""
        if split not in SPLIT_SHARES:
            raise DataError(f"{self._name}: there is no split {split!r}; expected one of {', '.join(SPLIT_SHARES)}")
        rng = random.Random(f"{self._name}/{split}/{seed}")
        found: dict[str, Problem] = {}
        misses = 0
        while len(found) < size:
            problem = self._draw(split, rng)
            misses = misses + 1 if problem.id in found else 0
            if misses > 1000:
                raise DataError(
                    f"{self._name}: split {split} gave {len(found)} distinct problems and then a thousand repeats; "
                    f"{size} were asked for; ask for fewer or declare more types"
                )
            found.setdefault(problem.id, problem)
        return list(found.values())

    def tools(self, problem: Problem | None = None) -> list[ToolSchema]:
        """Return the tools; every problem has the same ones."""
        return list(self._tools)

    def open(self, problem: Problem, seed: int) -> Desk:
        """Return a fresh desk in the problem's initial state, with the declared faults and latency."""
        return Desk(problem, faults=self._spec.faults, seed=seed, latency_seconds=self._spec.latency_ms / 1000)

    def demonstrate(
        self, problem: Problem, seed: int, mistakes: float = 0.0, *, recovers: bool = True
    ) -> Demonstration:
        """Return the clerk's episode; `spoiled` says whether a mistake was made in it, giving up among them."""
        rng = random.Random(f"{problem.id}/{seed}/mistakes") if mistakes > 0 else None
        made = 0

        def wrong() -> bool:
            nonlocal made
            slip = rng is not None and rng.random() < mistakes
            made += slip
            return slip

        desk = Desk(problem, faults=self._spec.faults, seed=seed)
        turns, gave_up = _solve(problem, desk, wrong, self._spec.max_turns, recovers=recovers)
        state = desk.final_state()
        desk.close()
        spoiled = made > 0 or gave_up
        return Demonstration(problem, turns, "clerk", spoiled=spoiled, final_state=state, answer=desk.answer)

    def sibling(self, problem: Problem, seed: int) -> Problem:
        """Return a training problem of the same type that shares no name, product, order or phrase with `problem`."""
        if problem.type not in types.PHRASES:
            raise DataError(
                f"{self._name}: no sibling of problem {problem.id!r} can be made, for {problem.type!r} is no type of "
                f"the order desk; expected one of {', '.join(types.PHRASES)}"
            )
        rng = random.Random(f"{self._name}/sibling/{problem.id}/{seed}")
        entities, phrase = types.entities(problem.text), types.phrase(problem.text)
        for _ in range(_SIBLING_DRAWS):
            text, world = types.draw(problem.type, "train", rng)
            if types.phrase(text) != phrase and entities.isdisjoint(types.entities(text)):
                return self._made(problem.type, "train", text, world)
        raise DataError(
            f"{self._name}: {_SIBLING_DRAWS} draws gave no sibling of problem {problem.id!r} with other names and "
            "words; this problem cannot have one"
        )

    def _draw(self, split: str, rng: random.Random) -> Problem:
        kind = self._kind(split, rng)
        return self._made(kind, split, *types.draw(kind, split, rng))

    def _made(self, kind: str, split: str, text: str, world: dict[str, Any]) -> Problem:
        digest = hashlib.sha256(f"{kind}\n{text}\n{json.dumps(world, sort_keys=True)}".encode()).hexdigest()[:16]
        tags = ["adversarial"] if kind in types.ADVERSARIAL else []
        problem = Problem(f"{self._name}-{split}-{digest}", self._name, kind, split, text, world, {}, tags)
        self._expect(problem)
        return problem

    def _kind(self, split: str, rng: random.Random) -> str:
        if rng.random() < self._spec.adversarial:
            return rng.choice(types.ADVERSARIAL)
        return rng.choice(self._spec.types or (types.TRAINING_DRAW if split == "train" else types.TYPES))

    def _expect(self, problem: Problem) -> None:
        """Fill in what the clerk's own run ends in. The answer is free where the state had to change."""
        desk = Desk(problem)
        before = _summary(problem)
        turns, _ = _solve(problem, desk, lambda: False, self._spec.max_turns)
        state, answer = desk.final_state(), desk.answer
        desk.close()
        if not desk.done:
            raise RolloutError(
                f"{self._name}: a problem of type {problem.type} takes more than max_turns = {self._spec.max_turns} "
                "turns; raise environments.*.max_turns or leave the type out"
            )
        problem.expected = {"state": state, "answer": answer if state == before else None}
        problem.min_calls = len(turns)


def _summary(problem: Problem) -> dict[str, Any]:
    """Return the initial state as `Desk.final_state` would write it."""
    world = problem.world
    return {
        "orders": {i: [o["status"], 0] for i, o in world["orders"].items()},
        "placed": [],
        "stock": world["stock"],
        "mail": sorted(world["mail"]),
    }


def _solve(
    problem: Problem, desk: Desk, wrong: Callable[[], bool], max_turns: int, *, recovers: bool = True
) -> tuple[list[tuple[ToolCall, Observation]], bool]:
    """Run the clerk on a desk until the end or `max_turns`; also return whether it gave up after a fault."""
    steps = clerk(problem.type, problem.world["request"], wrong)
    turns: list[tuple[ToolCall, Observation]] = []
    call, gave_up = next(steps), False
    while True:
        observation = desk.call(call)
        turns.append((call, observation))
        if observation.done or len(turns) == max_turns:
            return turns, gave_up
        gave_up = observation.injected and not recovers
        call = ToolCall("finish", {"answer": "done"}, written="") if gave_up else steps.send(observation.data)
