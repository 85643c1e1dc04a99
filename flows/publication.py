"""Which outputs become data versions, under which names, and which of them are published together."""

from flows.datasets import Item
from flows.durable import FileEntry
from flows.nodes import Node, Plan, outside_name
from flows.state import NodeReceipt, State

_TRAJECTORIES = (
    "collect", "pairs", "turns", "rollouts", "lessons", "train.policy_gradient", "train.opd", "evaluate", "mine",
)  # fmt: skip


def groups(plan: Plan) -> dict[str, list[Node]]:
    """Return the nodes whose outputs are versioned, by publication: one for all data sets, one for each stage."""
    found: dict[str, list[Node]] = {}
    for node in plan:
        if is_data(node) or node.kind in _TRAJECTORIES:
            parts = node.id.split(".")
            found.setdefault(parts[1] if node.kind == "evaluate" else parts[0], []).append(node)
    return found


def is_data(node: Node) -> bool:
    """Return whether a node's output is a data set."""
    return node.kind.startswith("data.") and node.kind != "data.apart"


def item_of(state: State, plan: Plan, node: Node, receipt: NodeReceipt | None) -> Item | None:
    """Return what is to be published of a finished node; None where it left nothing of the kind."""
    entries = [] if receipt is None else [e for e in receipt.outputs if is_data(node) or _is_trajectory(e)]
    if receipt is None or not entries:
        return None
    name = node.id.removeprefix("data.") if is_data(node) else f"{node.id}.trajectories"
    about = {"program": plan.program, "node": node.id, "kind": node.kind, "run_key": receipt.run_key}
    return Item(f"{plan.program}/{outside_name(name)}", state.node(receipt.run_key) / "out", entries, about)


def _is_trajectory(entry: FileEntry) -> bool:
    return entry.path.startswith(("trajectories/", "greedy/"))
