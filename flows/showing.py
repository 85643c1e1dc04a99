"""Tables that services show: the plan, and what a gate found."""

import json
import re
from typing import Any

from flows.nodes import Plan
from flows.state import State
from specs.errors import StateError


def slug(text: str) -> str:
    """Return text as a key of an artifact: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def plan_table(plan: Plan, digest: str) -> str:
    """Return the plan as Markdown."""
    head = [f"**{plan.program}** · plan `{digest[:12]}` · {len(plan.nodes)} nodes", ""]
    lines = ["| node | kind | after | rollouts | about |", "|---|---|---|---|---|"]
    for node in plan.nodes:
        after = ", ".join(dict.fromkeys(node.inputs.values())) or "-"
        cost = node.estimate.to_dict()
        lines.append(
            f"| {node.id} | {node.kind} | {after} | {int(cost.get('rollouts') or 0)} | {_time(cost.get('seconds'))} |"
        )
    return "\n".join([*head, *lines])


def _time(seconds: float | None) -> str:
    if not seconds:
        return "-"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def gate_record(state: State, run_key: str) -> dict[str, Any]:
    """Return the record that a gate node left; empty where it left none."""
    try:
        out = state.out(run_key)
        return json.loads((out / "gate.json").read_text(encoding="utf-8")) if out is not None else {}
    except (OSError, ValueError, StateError):
        return {}


def gate_rows(state: State, run_key: str) -> tuple[list[dict[str, Any]], str]:
    """Return a gate's rows, each with plain values only, and its answer in words."""
    record = gate_record(state, run_key)
    rows = [{k: _plain(v) for k, v in r.items()} for r in record.get("rows", []) if isinstance(r, dict)]
    return rows, f"{record.get('answer', '?')}: {record.get('text', '')}".strip(": ")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return value if isinstance(value, str | int | bool) or value is None else json.dumps(value)
