"""How a run went, as data and as a table: nodes, gates, champion, report, and how to go on."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.answers import commands, held_gates
from flows.live import duration, figures_text
from flows.nodes import Plan
from flows.registry import champion
from flows.state import RunRecord, State, exit_code
from specs.errors import StateError

_STYLES = {
    "reused": "dim", "completed": "green", "skipped": "dim", "gate_failed": "red", "held": "yellow",
    "failed": "red", "blocked": "red", "interrupted": "yellow", "running": "cyan",
}  # fmt: skip
ENDS = {0: "done", 3: "a gate failed", 4: "interrupted", 7: "held", 8: "stopped, its budget is used up"}
"""Exit code -> how an execution ended, in words."""
_MANY = 60  # nodes from which those that were only reused are folded into one row


def summary(state: State, record: RunRecord, plan: Plan | None, resume: str) -> dict[str, Any]:
    """Return what a person or a script wants to know of an execution; JSON-ready."""
    order = [n.id for n in plan.nodes] if plan is not None else list(record.nodes)
    kinds = {n.id: n.kind for n in plan.nodes} if plan is not None else {}
    nodes = [{"node": n, "kind": kinds.get(n), **_node(state, record, n)} for n in order]
    done = {n["node"]: n for n in nodes if n["status"] in ("reused", "completed", "gate_failed", "held")}
    code = exit_code(record)
    return {
        "program": record.program,
        "execution": record.execution,
        "state": "crashed" if record.arguments.get("crashed") else record.state,
        "exit_code": code,
        "started": record.started,
        "ended": record.ended,
        "driver": record.driver if record.state == "running" else None,
        "nodes": nodes,
        "gates": [_gate(state, d) for d in done.values() if d["kind"] == "gate"],
        "held": _held(state, record),
        "schedule": record.arguments.get("schedule"),
        "champion": _champion(state, record.program),
        "report": _report(state, done.values()),
        "resume": resume if code not in (0, 3) and record.state != "running" else None,
    }


def _node(state: State, record: RunRecord, node: str) -> dict[str, Any]:
    found = record.nodes.get(node)
    if found is None:
        part = record.arguments.get("until") or record.arguments.get("only")
        return {
            "status": "left out" if part else "not reached",
            "reason": "",
            "run_key": None,
            "seconds": 0.0,
            "notes": [],
        }
    key = found.get("run_key")
    receipt = state.receipt(key) if key else None
    status, reason = found["status"], found.get("reason", "")
    if status == "running" and record.state != "running":
        status, reason = "interrupted", "its driver died"
    if status == "running" and key and (said := state.progress(key)) is not None:
        share = f" {100 * said['share']:.0f}%" if said.get("share") is not None else ""
        reason = f"{said['what']}{share}  {figures_text(said['figures'])}"
    saved = state.checkpoint_info(key) if key and status in ("interrupted", "failed", "running") else None
    if saved is not None:
        reason += f"{'; ' if reason else ''}checkpoint {saved[0]}/{saved[1] or '?'} is kept"
    return {
        "status": status,
        "reason": reason,
        "run_key": key,
        "seconds": receipt.seconds if receipt is not None else 0.0,
        "notes": receipt.notes if receipt is not None else [],
        "metrics": receipt.metrics if receipt is not None else {},
    }


def _gate(state: State, node: dict[str, Any]) -> dict[str, Any]:
    out = state.node(node["run_key"]) / "out" / "gate.json"
    try:
        return {"gate": node["node"], **json.loads(out.read_text(encoding="utf-8"))}
    except (OSError, ValueError):
        return {"gate": node["node"], "text": f"{out}: cannot be read"}


def _held(state: State, record: RunRecord) -> list[dict[str, Any]]:
    """Return the gates that wait for a person, each with the answer that the next run will see."""
    try:
        held = held_gates(state, record.program)
    except StateError as e:
        return [{"gate": "?", "answer": None, "text": str(e)}]
    found: list[dict[str, Any]] = []
    for gate in held:
        yes, no = commands(record.program, gate)
        ask = f"waits for a person: {yes}\n  or: {no}"
        said = None if gate.answer is None else asdict(gate.answer)
        text = ask if gate.answer is None else f"{gate.answer.sentence}; the next run acts on it"
        about = {"candidate": gate.candidate, "evidence": gate.evidence, "execution": gate.execution}
        since = "" if gate.execution == record.execution else f" (held in execution {gate.execution})"
        found.append({"gate": gate.gate, **about, "answer": said, "text": f"{gate.gate}{since} {text}"})
    return found


def _champion(state: State, program: str) -> dict[str, Any] | None:
    try:
        found = champion(state.home, program)
    except StateError as e:
        return {"text": str(e)}
    return None if found is None else {"version": found.version, "stage": found.stage, "digest": found.digest}


def _report(state: State, done: Iterable[dict[str, Any]]) -> str | None:
    for node in done:
        if node["kind"] == "report":
            out = state.node(node["run_key"]) / "out"
            full = out / "notes" / "report.html"  # with durations and notes, which the digest leaves out
            path = full if full.exists() else out / "report.html"
            return str(path) if path.exists() else None
    return None


def view(data: dict[str, Any], notes: list[str], seconds: float | None = None) -> RenderableType:
    """Return the summary for a terminal."""
    parts: list[RenderableType] = [_table(data)]
    parts += [Text(str(g["text"])) for g in data["gates"] if g.get("text")]
    parts += [Text(str(g["text"])) for g in data["held"]]
    parts += [Text(f"note: {text}") for text in notes]
    if (best := data["champion"]) is not None:
        parts.append(Text(best.get("text") or f"champion: version {best['version']}, from {best['stage']}"))
    if data["report"]:
        parts.append(Text(f"report: {_short(data['report'])}", overflow="fold"))
    parts.append(Text(_last_line(data, seconds)))
    if data["resume"]:
        parts.append(Text(f"go on with: {data['resume']}"))
    return Group(*parts)


def _last_line(data: dict[str, Any], seconds: float | None) -> str:
    took = f" in {duration(seconds)}" if seconds is not None else ""
    statuses = [n["status"] for n in data["nodes"]]
    if data["state"] != "ended":
        return f"{data['program']}: {data['state']} (execution {data['execution']}, since {data['started']})"
    if statuses and all(s in ("reused", "skipped") for s in statuses):
        return f"{data['program']}: nothing to do, everything is done{took}"
    return f"{data['program']}: {ENDS.get(data['exit_code'], 'failed')}{took} (exit {data['exit_code']})"


def _table(data: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    nodes = data["nodes"]
    folded = {"left out", "reused"} if len(nodes) > _MANY else {"left out"}
    for n in nodes:
        if n["status"] in folded:
            continue
        took = duration(n["seconds"]) if n["seconds"] else ""
        why = n["reason"] or "; ".join(n["notes"][:2])
        table.add_row(
            n["node"], Text(n["status"].replace("_", " "), style=_STYLES.get(n["status"], "")), took, Text(why)
        )
    for status in sorted(folded):
        if hidden := sum(n["status"] == status for n in nodes):
            table.add_row(f"{hidden} more", Text(status, style="dim"), "", "")
    return table


def _short(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
