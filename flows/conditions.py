"""What is decided while a plan runs: whether a node is skipped."""

import json
from pathlib import Path

from flows.nodes import NODE_KINDS, Node
from specs.errors import StateError

_DECISIONS = tuple(k.decides for k in NODE_KINDS.values() if k.decides is not None)


def skip_reason(node: Node, inputs: dict[str, Path], results: dict[str, str]) -> str | None:
    """Return why a node is skipped; None where it runs.

    `inputs` are the folders of its inputs by name, `results` what their receipts say.
    """
    if node.kind == "promote" and results.get("gate") in ("gate_failed", "held"):
        return "the gate failed" if results["gate"] == "gate_failed" else "the gate is held"
    if node.when is None:
        return None
    name = next(k for k, i in node.inputs.items() if i == node.when["node"])
    if name not in inputs:
        return f"{node.when['node']} was skipped"
    field, expected = next((k, v) for k, v in node.when.items() if k != "node")
    found = _decision(inputs[name], field)
    return None if found is expected else f"{node.when['node']} decided {field}: {str(found).lower()}"


def _decision(folder: Path, field: str) -> bool:
    for name in _DECISIONS:
        path = folder / name
        if path.exists():
            value = json.loads(path.read_text(encoding="utf-8")).get(field)
            if isinstance(value, bool):
                return value
            raise StateError(f"{path}: {field}: found {value!r}, expected true or false")
    raise StateError(f"{folder}: holds no decision, expected one of {', '.join(_DECISIONS)}")
