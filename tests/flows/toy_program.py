"""A whole program in miniature: bodies that write what the real ones write, in milliseconds."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.context import NodeContext, Outcome
from flows.drive import Finish, Request, drive
from flows.leases import driver_lease
from flows.nodes import Plan
from flows.reconcile import reconcile
from flows.state import State
from specs.errors import TrainingError
from tests.faults.plans import node, plan_of


def data(node: NodeContext) -> Outcome:
    (node.out / "records.jsonl").write_text(f'{{"id": "{node.id}"}}\n')
    return Outcome(metrics={"rows": 1.0})


def initial(node: NodeContext) -> Outcome:
    _policy(node, "untouched")
    return Outcome(notes=["random weights"])


def _policy(node: NodeContext, weights: str) -> None:
    (node.out / "policy").mkdir()
    (node.out / "policy" / "model.safetensors").write_text(weights)


def train(node: NodeContext) -> Outcome:
    if node.params.get("fail"):
        raise TrainingError("teach: the loss is not finite; lower optimizer.learning_rate")
    for step in range(1, 6):
        node.metrics.log(step, loss=1.0 / step, gap=float("inf") if step in (2, 4) else 0.5)
    if "until" in node.params:
        last = time.monotonic() + 90.0
        while not Path(node.params["until"]).exists() and time.monotonic() < last:
            time.sleep(0.02)
    _policy(node, json.dumps(node.params))
    return Outcome(metrics={"loss": 0.2}, cost={"steps": 5.0, "tokens": 100.0})


def evaluate(node: NodeContext) -> Outcome:
    (node.out / "trajectories").mkdir()
    (node.out / "trajectories" / "part-00000.parquet").write_text(node.id)
    success = 0.1 if node.id.startswith("eval.init") else 0.9
    figures = {"success": success, "success_low": success - 0.05, "success_high": success + 0.05}
    return Outcome(metrics=dict(figures), cost={"rollouts": 10.0, "tokens": 50.0})


def gate(node: NodeContext) -> Outcome:
    answer = node.params["answer"]
    row = {"metric": "success", "set": "hidden", "value": 0.9, "low": 0.85, "holds": answer == "pass"}
    record = {"gate": "ship", "answer": answer, "candidate": "teach", "text": f"gate ship: {answer}", "rows": [row]}
    record["sentence"] = f"gate ship: {answer}"
    (node.out / "gate.json").write_text(json.dumps(record))
    results: dict[str, Any] = {"pass": "completed", "fail": "gate_failed", "inconclusive": "held"}
    return Outcome(result=results[answer], notes=[f"gate ship: {answer}"])


def report(node: NodeContext) -> Outcome:
    (node.out / "report.html").write_text("<p>report</p>")
    return Outcome()


_BODIES = {"data.problems": "data", "policy.init": "initial", "train.sft": "train"}


def entry_for(kind: str) -> str:
    """Return the body of a kind; promotion is the real one."""
    if kind == "promote":
        return "flows.work.promotion:promote"
    return f"tests.flows.toy_program:{_BODIES.get(kind, kind)}"


def plan(answer: str = "pass", name: str = "toy", **train: Any) -> Plan:
    """Return ten nodes: data, a policy, a stage, evaluations, gate, promotion, report."""
    prompt = {"template": "x" * 9000, "optimizer": {"kind": "adamw", "learning_rate": 0.001}}
    made = plan_of(
        [
            node("data.train", "data.problems", params={"set": "train"}),
            node("data.hidden", "data.problems", params={"set": "hidden"}),
            node("policy.init", "policy.init"),
            node(
                "teach",
                "train.sft",
                {"policy": "policy.init", "data.train": "data.train"},
                {"algorithm": {**prompt, **{f"z{i}": i for i in range(120)}}, **train},
            ),
            node("eval.init.hidden", "evaluate", {"policy": "policy.init", "problems": "data.hidden"}),
            node("eval.teach.hidden", "evaluate", {"policy": "teach", "problems": "data.hidden"}),
            node("gate.ship", "gate", {"candidate.teach.hidden": "eval.teach.hidden"}, {"answer": answer}),
            node(
                "promote.ship",
                "promote",
                {"gate": "gate.ship", "policy.teach": "teach"},
                {"program": name, "gate": "ship", "candidates": ["teach"]},
            ),
            node("report", "report", {"gate": "gate.ship", "train": "teach"}),
        ],
        program=name,
    )
    return replace(made, policies={"init": "policy.init", "teach": "teach"}, about="A toy.", tags={"team": "t"})


def run(home: Path, what: Plan, *, services: bool, watch: Callable[[str], None] | None = None) -> Finish:
    """Drive a plan in this process, as `tutelage run` does."""
    state = State(home)
    state.prepare()
    state.program(what.program).mkdir(exist_ok=True)
    source = home.parent / "toy.yaml"
    source.write_text("program: toy\n")
    with driver_lease(state.program(what.program) / "lease", what.program):
        reconcile(state, what.program)
        return drive(what, state, Request(str(source), services=services, quiet=True, entry_for=entry_for, preload=()))
