"""Single-turn function calling with the problems of the Berkeley Function Calling Leaderboard (Apache-2.0).

The problems come with the package `bfcl_eval`, whose data files are read and whose code is never imported. They are
split by the function that answers them, over every category at once: no function that training calls is ever called
by a held-out problem. Problems whose answer allows nothing for some argument are left out and counted in `dropped`.
"""

import copy
import hashlib
import importlib.util
import json
import random
from functools import cache
from pathlib import Path
from typing import Any, get_args

from specs.data import Split
from specs.environments import BFCL
from specs.errors import DataError, ProgramError
from specs.records import Demonstration, Observation, Problem, ToolCall
from tasks.protocols import ToolSchema

CATEGORIES = ("simple_python", "multiple", "live_simple")
HELD_OUT_SHARES = {"golden": 0.10, "audit": 0.05}
"""Shares of the held-out functions; what remains is hidden."""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_DEEPEST = 20


class BFCLWorld:
    """Takes one call; the calls taken are the final state."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self.done = False
        self.answer: str | None = None

    def call(self, call: ToolCall) -> Observation:
        """Record the call and end."""
        if self.done:
            return Observation({"error": "ended"}, is_error=True)
        self._calls.append({"name": call.name, "arguments": call.arguments})
        self.done = True
        return Observation({"ok": 1}, done=True, changed=True)

    def final_state(self) -> dict[str, Any]:
        """Return the calls; none is taken afterwards."""
        self.done = True
        return {"calls": self._calls}

    def close(self) -> None:
        """Do nothing: there is nothing to give up."""


class BFCLEnvironment:
    """Problems of the chosen categories; `dropped` says how many of each were left out."""

    version = f"bfcl@{BFCL.version}"

    def __init__(self, name: str, spec: BFCL) -> None:
        self._name, self._spec = name, spec
        records = _records(_folder(name))
        usable = [r for r in records if _allows_something(r["allowed"])]
        splits = _splits(sorted({r["function"] for r in usable}), spec.train_share)
        self.dropped = {
            f"{c}: an allowed list is empty": sum(r["category"] == c for r in records) - kept
            for c in spec.categories
            if (kept := sum(r["category"] == c for r in usable)) < sum(r["category"] == c for r in records)
        }
        self._by_split: dict[str, list[dict[str, Any]]] = {s: [] for s in get_args(Split)}
        for record in usable:
            if record["category"] in spec.categories:
                self._by_split[splits[record["function"]]].append(record)

    @property
    def max_turns(self) -> int:
        """Return after how many turns an episode ends unfinished."""
        return self._spec.max_turns

    def problems(self, split: str, size: int, seed: int) -> list[Problem]:
        """Return the first `size` problems of a split in the seed's order; DataError where it has fewer."""
        records = self._by_split.get(split)
        if records is None:
            raise DataError(f"{self._name}: there is no split {split!r}; expected one of {', '.join(self._by_split)}")
        if size > len(records):
            raise DataError(
                f"{self._name}: split {split} holds {len(records)} problems of {', '.join(self._spec.categories)}, "
                f"{size} were asked for; lower `size`, add categories or change `train_share`"
            )
        order = list(records)
        random.Random(f"{self._name}/{split}/{seed}").shuffle(order)
        return [self._problem(r, split, records) for r in order[:size]]

    def capacity(self, split: str) -> int:
        """Return how many problems a split holds."""
        return len(self._by_split[split])

    def tools(self, problem: Problem | None = None) -> list[ToolSchema]:
        """Return the functions of one problem; without a problem there are none, for they all differ."""
        if problem is None:
            return []
        try:
            return [ToolSchema(**t) for t in problem.tools or ()]
        except TypeError as e:
            raise DataError(
                f"the tools of problem {problem.id!r} cannot be used by {self._name} ({e}); "
                "give each of them a name, a description and parameters"
            ) from e

    def open(self, problem: Problem, seed: int) -> BFCLWorld:
        """Return a world that takes one call."""
        return BFCLWorld()

    def demonstrate(
        self, problem: Problem, seed: int, mistakes: float = 0.0, *, recovers: bool = True
    ) -> Demonstration:
        """Return the expected call with the first allowed values; mistakes call another function or spoil values.

        One call that never fails: there is nothing to recover from.
        """
        rng = random.Random(f"{problem.id}/{seed}/mistakes")
        expected = problem.expected["calls"][0]
        name, spoiled = expected["name"], False
        others = [t["name"] for t in problem.tools or () if t["name"] != name]
        if others and rng.random() < mistakes:
            name, spoiled = rng.choice(others), True
        arguments: dict[str, Any] = {}
        for key, value in gold_arguments(expected).items():
            wrong = rng.random() < mistakes
            arguments[key] = _spoil(value) if wrong else value
            spoiled = spoiled or wrong
        world = BFCLWorld()
        call = ToolCall(name, arguments, written="")
        turns = [(call, world.call(call))]
        return Demonstration(problem, turns, "gold", spoiled=spoiled, final_state=world.final_state())

    def sibling(self, problem: Problem, seed: int) -> Problem:
        """Raise DataError: the problems are a fixed collection."""
        raise DataError(
            f"{self._name}: no sibling of problem {problem.id!r} can be made, for the problems of bfcl are a fixed "
            "collection; choose ask_person or ticket as the remedy, or an environment that makes problems"
        )

    def _problem(self, record: dict[str, Any], split: str, pool: list[dict[str, Any]]) -> Problem:
        offered = [*record["offered"], *self._distractors(record, pool)]
        if self._spec.distractors:
            random.Random(f"{record['id']}/order").shuffle(offered)
        call = {"name": record["function"], "arguments": record["allowed"], "required": record["required"]}
        return Problem(
            id=f"{self._name}-{record['id']}",
            environment=self._name,
            type=record["category"],
            split=split,
            text=record["text"],
            world={},
            expected={"calls": [copy.deepcopy(call)]},
            tools=[_schema(f, self._spec.hint_length) for f in offered],
        )

    def _distractors(self, record: dict[str, Any], pool: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return functions that other problems of the split call, none of a name already offered."""
        names = {f["name"] for f in record["offered"]}
        others = {r["function"]: r["called"] for r in pool if r["function"] not in names}
        count = min(self._spec.distractors, len(others))
        return [others[n] for n in random.Random(f"{record['id']}/distractors").sample(sorted(others), count)]


def gold_arguments(expected: dict[str, Any]) -> dict[str, Any]:
    """Return the first allowed value of each argument; one that may be left out is, unless the schema requires it."""
    gold: dict[str, Any] = {}
    for key, allowed in expected["arguments"].items():
        values = [v for v in allowed if not (isinstance(v, str) and v == "")]
        if values and (len(values) == len(allowed) or key in expected["required"]):
            gold[key] = _plain(values[0])
        elif not values and key in expected["required"]:
            gold[key] = ""
    return gold


def _plain(value: Any) -> Any:
    """Return an allowed value without the lists of alternatives that objects hold for each of their keys."""
    if isinstance(value, dict):
        lists = {k: v if isinstance(v, list) else [v] for k, v in value.items()}
        return {k: _plain(v[0]) for k, v in lists.items() if v and "" not in v}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _spoil(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"not {value}"
        case list():
            return [*value, *value[:1]] if value else [0]
        case _:
            return {}


def _folder(name: str) -> Path:
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or found.origin is None:
        raise ProgramError(
            f"environments.{name}: the package bfcl_eval with the problems is not installed; "
            "install it with: pip install --no-deps bfcl-eval"
        )
    return Path(found.origin).parent / "data"


@cache
def _records(folder: Path) -> tuple[dict[str, Any], ...]:
    """Return every problem of every category, in the files' order."""
    found: list[dict[str, Any]] = []
    for category in CATEGORIES:
        asked = _lines(folder / f"BFCL_v4_{category}.json")
        answers = {
            a["id"]: a["ground_truth"][0] for a in _lines(folder / "possible_answer" / f"BFCL_v4_{category}.json")
        }
        for entry in asked:
            ((function, allowed),) = answers[entry["id"]].items()
            called = next(f for f in entry["function"] if f["name"] == function)
            required = called["parameters"].get("required", [])
            found.append(
                {
                    "id": entry["id"],
                    "category": category,
                    "text": "\n".join(m["content"].strip() for m in entry["question"][0]),
                    "offered": entry["function"],
                    "called": called,
                    "function": function,
                    "allowed": allowed,
                    "required": [k for k in required if k in allowed],
                }
            )
    return tuple(found)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as e:
        raise ProgramError(
            f"{path.name} of the package bfcl_eval cannot be read ({e}); reinstall it: "
            "pip install --force-reinstall --no-deps bfcl-eval"
        ) from e


def _splits(functions: list[str], train_share: float) -> dict[str, str]:
    """Return the split of each function; the order is that of the names' digests."""
    ranked = sorted(functions, key=lambda f: hashlib.sha256(f.encode()).hexdigest())
    train = round(train_share * len(ranked))
    bounds = [("train", train)]
    for split, share in HELD_OUT_SHARES.items():
        bounds.append((split, round(share * (len(ranked) - train))))
    names = [split for split, count in bounds for _ in range(count)]
    names += ["hidden"] * (len(ranked) - len(names))
    return dict(zip(ranked, names, strict=True))


def _allows_something(allowed: Any) -> bool:
    """Return whether no list of allowed values is empty."""
    return all(isinstance(values, list) and bool(values) for values in allowed.values())


def _first_sentence(text: str) -> str:
    return text.strip().split(". ")[0].rstrip(".")


def _schema(function: dict[str, Any], hint_length: int) -> dict[str, Any]:
    """Return a function as a tool: JSON schema types, its first sentence, and short hints for texts and lists."""
    parameters = _parameters(function["parameters"], hint_length, 0)
    parameters.setdefault("properties", {})
    parameters["additionalProperties"] = False
    return {
        "name": function["name"],
        "description": _first_sentence(function.get("description", "")),
        "parameters": parameters,
    }


def _parameters(parameter: dict[str, Any], hint_length: int, depth: int) -> dict[str, Any]:
    kind = parameter.get("type", "any")
    schema: dict[str, Any] = {} if kind == "any" else {"type": _TYPES.get(kind, kind)}
    if parameter.get("enum"):
        schema["enum"] = list(parameter["enum"])
    if depth < _DEEPEST and "properties" in parameter:
        properties = parameter["properties"].items()
        schema["properties"] = {k: _parameters(v, hint_length, depth + 1) for k, v in properties}
        schema["required"] = [k for k in parameter.get("required", ()) if k in schema["properties"]]
    if depth < _DEEPEST and isinstance(parameter.get("items"), dict):
        schema["items"] = _parameters(parameter["items"], hint_length, depth + 1)
    if depth > 0 and hint_length and kind in ("string", "array") and "enum" not in schema:
        hint = _first_sentence(parameter.get("description", ""))[:hint_length]
        if hint:
            schema["description"] = hint
    return schema
