"""What is decided while a plan runs: whether a node is skipped."""

import json
from pathlib import Path
from typing import Any

from flows.nodes import NODE_KINDS, Node
from specs.errors import StateError

_DECISIONS = tuple(k.decides for k in NODE_KINDS.values() if k.decides is not None)


def skip_reason(node: Node, inputs: dict[str, Path], results: dict[str, str]) -> str | None:
    """Return why a node is skipped; None where it runs.

    `inputs` are the folders of its inputs by name, `results` what their receipts say.
    """
    if node.kind == "promote" and results.get("gate") in ("gate_failed", "held"):
        return "the gate failed" if results["gate"] == "gate_failed" else "the gate is held"
    if node.kind == "data.pool" and results.get("remedy") == "held":
        return f"{node.inputs['remedy']} is held"
    if node.when is not None:
        name = next(k for k, i in node.inputs.items() if i == node.when["node"])
        if name not in inputs:
            return f"{node.when['node']} was skipped"
        field, expected = next((k, v) for k, v in node.when.items() if k != "node")
        told = _decision(inputs[name], field)
        if told[field] is not expected:
            held = told.get("held")
            return f"{held} is held" if held else f"{node.when['node']} decided {field}: {json.dumps(not expected)}"
    gone = [n for n in NODE_KINDS[node.kind].needs if n in node.inputs and n not in inputs]
    return f"{node.inputs[gone[0]]} was skipped" if gone else _nothing_to_train_on(node, inputs)


def _nothing_to_train_on(node: Node, inputs: dict[str, Path]) -> str | None:
    """Return why a stage of a round is skipped: a pool was not made, or all that it reads are pools, and empty."""
    pools: list[str] = node.params.get("of_round", [])
    if gone := [node.inputs[f"data.{pool}"] for pool in pools if f"data.{pool}" not in inputs]:
        return f"{gone[0]} was skipped"
    if not pools or set(pools) != set(node.params["data"]):
        return None
    if any(pool_rows(inputs[f"data.{pool}"]) for pool in pools):
        return None
    return f"nothing to train on: {', '.join(pools)} {'is' if len(pools) == 1 else 'are'} empty"


def pool_rows(folder: Path) -> int:
    """Return how many records a pool's node holds. StateError where it does not say."""
    path = folder / "summary.json"
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["records"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StateError(f"{path}: does not say how many records the pool holds ({e}); run the round again") from e


def _decision(folder: Path, field: str) -> dict[str, Any]:
    """Return what was decided, with `held` where it is so because a node is held. StateError where it does not say."""
    for name in _DECISIONS:
        path = folder / name
        if path.exists():
            told = json.loads(path.read_text(encoding="utf-8"))
            value = told.get(field)
            if isinstance(value, bool):
                return told
            raise StateError(f"{path}: {field}: found {value!r}, expected true or false")
    raise StateError(f"{folder}: holds no decision, expected one of {', '.join(_DECISIONS)}")
