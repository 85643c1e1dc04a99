"""The reference plan of the fault tests, built without a program file."""

from dataclasses import replace
from typing import Any

from flows.estimates import Estimate
from flows.nodes import Node, Plan, content_key


def node(
    name: str, kind: str, inputs: dict[str, str] | None = None, params: dict[str, Any] | None = None, **more: Any
) -> Node:
    return Node(name, kind, 1, params or {}, 17, inputs or {}, Estimate(), **more)


def plan_of(nodes: list[Node], program: str = "reference", **budget: Any) -> Plan:
    keyed: dict[str, Node] = {}
    for n in nodes:
        key = content_key(n, {name: keyed[i].plan_key for name, i in n.inputs.items()})
        keyed[n.id] = replace(n, plan_key=key)
    return Plan(
        program=program, about="", seed=17, program_digest="none", resolution={}, nodes=tuple(keyed.values()),
        policies={}, stages=("teach",), execution={"parallel": 2, "device": "cpu"}, budget=budget, tags={}, rows={},
    )  # fmt: skip


def reference(train: dict[str, Any] | None = None, gate: dict[str, Any] | None = None, **budget: Any) -> Plan:
    """Nine nodes: data, a policy, a stage with checkpoints, evaluation, gate, promotion, report."""
    return plan_of(
        [
            node("data.train", "data.problems", params={"set": "train"}),
            node("data.golden", "data.problems", params={"set": "golden"}),
            node("data.apart", "data.apart", {"train.train": "data.train", "eval.golden": "data.golden"}),
            node("policy.init", "policy.init"),
            node("teach", "train.sft", {"policy": "policy.init", "apart": "data.apart", "data": "data.train"}, train),
            node("eval.teach.golden", "evaluate", {"policy": "teach", "problems": "data.golden"}),
            node("gate.ship", "gate", {"candidate.teach.golden": "eval.teach.golden"}, gate),
            node("promote.ship", "promote", {"gate": "gate.ship", "policy.teach": "teach"}),
            node("report", "report", {"eval": "eval.teach.golden", "gate": "gate.ship", "train": "teach"}),
        ],
        **budget,
    )


def campaign(*, chain: bool = True, answer: str = "pass", disk_mb: float = 0.0) -> Plan:
    """The reference program: data, paid replies, paid rollouts, verdicts, training, evaluation, gate, promotion."""
    calls = {"data": "data.train", "apart": "data.apart"}
    first = node("data.train", "data.problems", params={"set": "train"})
    return plan_of(
        [
            replace(first, estimate=Estimate(disk_mb=disk_mb)),
            node("data.golden", "data.problems", params={"set": "golden"}),
            node("data.apart", "data.apart", {"train.train": "data.train", "eval.golden": "data.golden"}),
            node("replies", "collect", calls, {"what": "reply"}),
            node("rollouts", "collect", {**calls, "replies": "replies"}, {"what": "rollout"}),
            node("verdicts", "preflight", {"rollouts": "rollouts"}),
            node("learn", "train.rft", {"collect": "verdicts", "replies": "replies", "rollouts": "rollouts"}, {"chain": chain}),
            node("eval.learn.golden", "evaluate", {"policy": "learn", "problems": "data.golden"}),
            node("gate.ship", "gate", {"candidate.learn.golden": "eval.learn.golden"}, {"answer": answer}),
            node("promote.ship", "promote", {"gate": "gate.ship", "policy.learn": "learn"}, {"program": "campaign"}),
            node("report", "report", {"eval": "eval.learn.golden", "gate": "gate.ship", "train": "learn"}),
        ],
        "campaign",
    )  # fmt: skip
