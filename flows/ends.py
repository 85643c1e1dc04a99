"""How nodes end, what listeners hear of it, and which nodes are urgent."""

from dataclasses import dataclass, field

from flows.nodes import Node, Plan
from flows.state import NodeReceipt

DONE = ("reused", "completed", "skipped", "gate_failed", "held")
_EXIT = {"gate_failed": 3, "held": 7}


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """How a node ended. `digest` is that of its output, `nothing` where it left none."""

    node: str
    status: str
    reason: str = ""
    run_key: str | None = None
    digest: str | None = None
    receipt: NodeReceipt | None = None
    exit_code: int = 0

    @property
    def done(self) -> bool:
        """Return whether what depends on it can go on."""
        return self.status in DONE


@dataclass(frozen=True, slots=True)
class Event:
    """Something a listener may show or record. `what` is `started`, `progress`, `ended` or `note`."""

    what: str
    node: str
    end: NodeEnd | None = None
    run_key: str | None = None
    text: str = ""
    share: float | None = None
    figures: dict[str, float] = field(default_factory=dict[str, float])


def end_of(node: Node, receipt: NodeReceipt, *, reused: bool) -> NodeEnd:
    """Return how a node ended, from its receipt."""
    result = receipt.result
    status = {"already_promoted": "completed"}.get(result, result)
    reason = "already promoted" if result == "already_promoted" else ""
    if status != "completed":
        reason = "; ".join(receipt.notes[:1])
    if reused and status == "completed":
        status = "reused"
    code = _EXIT.get(status, 0)
    return NodeEnd(node.id, status, reason, receipt.run_key, receipt.output_digest, receipt, code)


def ranks(plan: Plan) -> dict[str, float]:
    """Return, by node, the estimated seconds of the longest way from its start to the end of the plan."""
    rank = {n.id: 0.0 for n in plan.nodes}
    for node in reversed(plan.nodes):
        rank[node.id] += max(node.estimate.seconds, 1e-3)
        for i in node.inputs.values():
            rank[i] = max(rank[i], rank[node.id])
    return rank
