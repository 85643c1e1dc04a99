"""What an execution comes down to: the numbers and parameters by which people compare runs."""

from typing import Any

from flows.nodes import Plan, outside_name, round_of
from flows.showing import gate_record
from flows.state import NodeReceipt, State
from tasks.judging.report_data import final_candidate

RAN = ("completed", "gate_failed", "held", "failed", "interrupted")
"""Statuses of nodes that were carried out, well or not."""

_ROUND = {"cases.attribute": ("failure_rate",), "pools.publish": ("regression_problems", "cases")}
"""Figures of a round that are part of the run's, by kind of node."""


def summary_vector(
    state: State, plan: Plan, receipts: dict[str, NodeReceipt], ends: dict[str, dict[str, Any]], hours: float
) -> dict[str, float]:
    """Return the numbers that every execution of a program has: success by set, gates, cost, nodes, hours."""
    gates = {n.id: gate_record(state, receipts[n.id].run_key) for n in plan if n.kind == "gate" and n.id in receipts}
    main = [s for s in plan.stages if not round_of(s)] or ["champion"]
    chosen = final_candidate(gates.values()) or main[-1]
    vector: dict[str, float] = {"hours": hours}
    for node in plan:
        if node.kind == "evaluate" and node.id.split(".")[1] == chosen and node.id in receipts:
            name = ".".join(node.id.split(".")[2:])
            vector |= {f"{k}.{name}": v for k, v in receipts[node.id].metrics.items() if v is not None}
    for node in plan:
        if node.kind in _ROUND and node.id in receipts:
            found = {k: receipts[node.id].metrics.get(k) for k in _ROUND[node.kind]}
            vector |= {f"{node.id}.{k}": v for k, v in found.items() if v is not None}
    for gate, record in gates.items():
        if not record:  # its round did not run
            continue
        answers = {"pass": 1.0, "already_promoted": 1.0, "superseded": 1.0, "fail": -1.0}
        vector[outside_name(gate)] = answers.get(record.get("answer", ""), 0.0)
    ran = [n for n, e in ends.items() if e["status"] in RAN]
    for cost in ("rollouts", "tokens", "steps", "teacher_calls", "teacher_usd"):
        vector[f"cost.{cost}"] = float(sum(receipts[n].cost.get(cost, 0.0) for n in ran if n in receipts))
    vector["nodes.run"] = float(len(ran))
    vector["nodes.reused"] = float(sum(e["status"] == "reused" for e in ends.values()))
    return vector


def stage_points(plan: Plan, receipts: dict[str, NodeReceipt], at: int) -> list[tuple[str, float, int, int]]:
    """Return success by set over the stages: step 0 is the untouched policy, then one step a stage."""
    points: list[tuple[str, float, int, int]] = []
    for node in plan:
        if node.kind != "evaluate" or node.id not in receipts:
            continue
        _, policy, *rest = node.id.split(".")
        order = ["init", *plan.stages]
        if policy in order:
            for name in ("success", "success_greedy"):
                if (value := receipts[node.id].metrics.get(name)) is not None:
                    points.append((f"by_stage.{name}.{'.'.join(rest)}", value, at, order.index(policy)))
    return points


def semantic(plan: Plan) -> dict[str, Any]:
    """Return what a reader wants to compare of a whole program: each stage's algorithm and the policy."""
    chosen: dict[str, Any] = {}
    for node in plan:
        if node.kind.startswith("train.") and "algorithm" in node.params:
            chosen[node.id] = node.params["algorithm"]
        if node.id == "policy.init":  # teachers that act are of the kind too
            chosen["policy"] = node.params.get("policy", {})
    return chosen
