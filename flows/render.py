"""A plan for people: tables of nodes, losses, gates and memory; and the same as JSON for programs."""

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.nodes import Json, Plan
from flows.plan import PlanDiff, Status, totals
from flows.power import GatePower

JSON_SCHEMA = 1
_STYLES = {
    "reused": "green", "run": "bold", "maybe": "dim", "resume": "yellow",
    "held": "magenta", "gate_failed": "red", "blocked": "red",
}  # fmt: skip


def console() -> Console:
    """Return a console for tables; wide enough for them where the output is no terminal."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = 140
    return out


def plan_json(plan: Plan, found: Mapping[str, Status], powers: Sequence[GatePower], against: PlanDiff | None) -> Json:
    """Return what `plan --json` prints; keys are only ever added."""
    nodes: list[Json] = []
    for node in plan:
        status = found[node.id]
        nodes.append({
            "id": node.id,
            "kind": node.kind,
            "status": status.status,
            "reason": status.reason,
            "plan_key": node.plan_key,
            "run_key": status.run_key,
            "inputs": node.inputs,
            "when": node.when,
            "estimate": node.estimate.to_dict(),
        })  # fmt: skip
    return {
        "schema": JSON_SCHEMA,
        "program": plan.program,
        "program_digest": plan.program_digest,
        "aliases": plan.resolution["aliases"],
        "resolution_reused": plan.resolution["reused"],
        "rounds_only": plan.resolution.get("rounds_only", False),
        "nodes": nodes,
        "totals": totals(plan, found),
        "gates": [p.to_dict() for p in powers],
        "losses": plan.details["losses"],
        "reward": plan.details["reward"],
        "dominance": plan.details["dominance"],
        "flywheel": plan.details.get("flywheel"),
        "diff": None if against is None else against.to_dict(),
    }


def seconds(value: float) -> str:
    """Return a duration for people."""
    if value < 90:
        return f"{value:.0f} s" if value >= 1 else "<1 s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"


def count(value: float) -> str:
    """Return a number for people: 12.8k, 3.1M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{value:.0f}" if value else ""


def plan_view(plan: Plan, found: Mapping[str, Status], powers: Sequence[GatePower]) -> RenderableType:
    """Return a plan as tables."""
    parts: list[RenderableType] = [_nodes(plan, found), _total_line(plan, found), _losses(plan)]
    if (memory := _memory(plan, found)).row_count:
        parts.append(memory)
    if powers:
        parts.append(_gates(powers))
    if plan.resolution.get("rounds_only"):
        version = plan.resolution["aliases"]["champion"]["version"]
        parts.append(
            Text(f"rounds only: the first begins with the champion (version {version}); the main part trains nothing")
        )
    if plan.resolution["reused"]:
        parts.append(Text("aliases mean what they meant at the last run; --refresh looks again", style="dim"))
    return Group(*parts)


def _table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _nodes(plan: Plan, found: Mapping[str, Status]) -> Table:
    right = ("rollouts", "tokens", "time")
    table = _table(f"{plan.program}: {len(plan.nodes)} nodes", "node", "status", *right, right=right)
    for node in plan:
        status, e = found[node.id], node.estimate
        waits = status.status in ("run", "maybe", "resume")
        figures = (count(e.rollouts), count(e.tokens), seconds(e.seconds)) if waits else ("", "", "")
        table.add_row(Text(node.id), Text(str(status), style=_STYLES[status.status]), *figures)
    return table


def _total_line(plan: Plan, found: Mapping[str, Status]) -> Text:
    sums = totals(plan, found)
    if not sums["to_run"]:
        return Text("\nnothing to do: every node is reused" if not sums["conditional"] else "\nnothing is sure to run")
    line = (
        f"\n{sums['to_run']} of {sums['nodes']} nodes to run: about {seconds(sums['wall_seconds'])} on "
        f"{plan.execution['device']}, {count(sums['rollouts']) or 'no'} rollouts, {count(sums['tokens'])} tokens, "
        f"{sums['teacher_calls']} teacher calls{_dollars(sums['teacher_usd'])}, {sums['disk_mb']:.0f} MB of disk, "
        f"{sums['memory_gb']:.1f} GB of memory with {plan.execution['parallel']} nodes at once"
    )
    if sums["conditional"]:
        line += f"; {sums['conditional']} conditional nodes add at most {seconds(sums['at_most']['seconds'] - sums['seconds'])}"
    return Text(line)


def _dollars(usd: float) -> str:
    return f" (about ${usd:,.2f})" if usd else ""


def _losses(plan: Plan) -> Table:
    table = _table("\nwhat stages minimise", "stage", "loss")
    for stage, told in plan.details["losses"].items():
        table.add_row(
            Text(f"{stage} ({told['type']})"), Text(f"{told['equation']}\n{told['words']}\n{told['optimizer']}")
        )
    for part, words in plan.details.get("flywheel", {}).items():
        table.add_row(Text(f"each round: {part}" if part != "rounds" else part), Text(words))
    table.add_row("reward", Text(f"{plan.details['reward']}\n{plan.details['dominance']}"))
    return table


def _memory(plan: Plan, found: Mapping[str, Status]) -> Table:
    """Show the neediest node of each kind: the others of a kind need as much or less."""
    needy: dict[str, str] = {}
    for node in plan:
        if node.heavy and found[node.id].status in ("run", "maybe", "resume"):
            best = needy.get(node.kind)
            if best is None or plan.node(best).estimate.memory_gb < node.estimate.memory_gb:
                needy[node.kind] = node.id
    table = _table(f"\nmemory on {plan.execution['device']}", "node", "GB", "of which", right=("GB",))
    for node_id in needy.values():
        e = plan.node(node_id).estimate
        table.add_row(Text(node_id), f"{e.memory_gb:.2f}", ", ".join(f"{k} {v:.2f}" for k, v in e.memory_parts.items()))
    return table


def _gates(powers: Sequence[GatePower]) -> Table:
    table = _table("\nwhat gates can see", "gate", "requirement", "problems", "answer", right=("problems",))
    for p in powers:
        words = f"{p.metric} on {p.set} {p.bound} {p.value:g}"
        table.add_row(Text(p.gate), words, str(p.problems), Text(p.text, style="" if p.decidable else "red"))
    return table


def diff_view(against: PlanDiff, name: str) -> RenderableType:
    """Return how a plan differs from another."""
    if against.empty:
        return Text(f"\nno difference to {name}: all {against.unchanged} nodes are the same")
    table = _table(f"\ndifference to {name} ({against.unchanged} nodes unchanged)", "node", "change")
    for node, changes in against.changed.items():
        table.add_row(Text(node), Text("\n".join(str(c) for c in changes)))
    for node, inputs in against.moved.items():
        more = f" and {len(inputs) - 3} more" if len(inputs) > 3 else ""
        table.add_row(Text(node), Text(f"input {', '.join(inputs[:3])}{more} changed", style="dim"))
    for node in against.added:
        table.add_row(Text(node), Text("added", style="green"))
    for node in against.removed:
        table.add_row(Text(node), Text("removed", style="red"))
    return table
