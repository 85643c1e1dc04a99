"""What bodies read from their input folders: records, problems, worlds. Torch-free, for bodies that run in the driver."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows.context import NodeContext
from specs.environments import Environment as EnvironmentSpec
from specs.errors import DataError, StateError
from specs.records import Demonstration, Problem, demonstration_from, problem_from
from tasks.episodes.environments import environment_for
from tasks.protocols import Environment


def dropped_ids(node: NodeContext, name: str) -> set[str]:
    """Return the ids of a data set that must not train, because an evaluation set holds the like."""
    if "apart" not in node.inputs:
        return set()
    path = node.inputs["apart"] / "apart.json"
    return set(_read_json(path)["dropped"].get(name, []))


def records(node: NodeContext, name: str) -> Iterator[Demonstration | Problem]:
    """Yield what a data set holds, without what `data.apart` dropped."""
    path = node.inputs[f"data.{name}"] / "records.jsonl"
    dropped = dropped_ids(node, name)
    with path.open(encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                data = json.loads(line)
                record = demonstration_from(data) if "turns" in data else problem_from(data)
            except (ValueError, KeyError, TypeError) as e:
                raise DataError(f"{path}:{number}: found a record that cannot be read ({e}); make the data anew") from e
            problem = record.problem if isinstance(record, Demonstration) else record
            if problem.id not in dropped:
                yield record


def problems(node: NodeContext, name: str) -> list[Problem]:
    """Return the problems of a data set; of demonstrations, what they solve."""
    return [r.problem if isinstance(r, Demonstration) else r for r in records(node, name)]


def environments(node: NodeContext) -> dict[str, Environment]:
    """Return the environments that the stage uses."""
    adapter: TypeAdapter[EnvironmentSpec] = TypeAdapter(EnvironmentSpec)
    return {
        name: environment_for(name, adapter.validate_python(spec)) for name, spec in node.params["environments"].items()
    }


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise StateError(f"{path}: cannot be read ({e}); run the node that makes it again") from e
