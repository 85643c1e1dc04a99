"""Bodies of the reference plan: pure Python, deterministic, slow enough to be killed, some with checkpoints."""

import hashlib
import json
import os
import time
from pathlib import Path

from flows.context import NodeContext, Outcome, Result
from specs.errors import Interrupted, TrainingError
from tasks.files import Ledger, fault_point, replace_dir, write_json

PAUSE = float(os.environ.get("FAULT_PAUSE", "0.004"))


def _text(node: NodeContext) -> str:
    return "".join(
        p.read_text() for folder in node.inputs.values() for p in sorted(folder.glob("*.json*")) if p.is_file()
    )


def data(node: NodeContext) -> Outcome:
    lines = [json.dumps({"id": i, "text": hashlib.sha256(f"{node.seed}/{i}".encode()).hexdigest()}) for i in range(24)]
    (node.out / "records.jsonl").write_text("\n".join(lines) + "\n")
    return Outcome(metrics={"rows": 24.0})


def apart(node: NodeContext) -> Outcome:
    (node.out / "apart.json").write_text(json.dumps({"hits": [], "dropped": {}}))
    return Outcome()


def initial(node: NodeContext) -> Outcome:
    (node.out / "policy.json").write_text(json.dumps({"weights": node.seed}))
    (node.out / "notes").mkdir()
    (node.out / "notes" / "timing.json").write_text(json.dumps({"now": time.time()}))
    return Outcome(notes=["random weights"])


def train(node: NodeContext) -> Outcome:
    """Thirty steps of a hash chain, a checkpoint every five, one rollout ledger line a step."""
    if node.params.get("fail"):
        raise TrainingError("teach: the loss is not finite at step 3; lower optimizer.learning_rate")
    if node.params.get("break"):
        raise KeyError("weights")
    state, first = hashlib.sha256(_text(node).encode()).hexdigest(), 0
    rollouts = Ledger(node.checkpoints / "rollouts.jsonl")
    done = sorted(node.checkpoints.glob("step-*"))
    if done:
        saved = json.loads((done[-1] / "state.json").read_text())
        state, first = saved["state"], saved["step"]
    node.metrics.resume_from(first)
    known = {r["step"] for r in rollouts}
    for step in range(first + 1, 31):
        time.sleep(PAUSE)
        state = hashlib.sha256(state.encode()).hexdigest()
        if step not in known:
            rollouts.append([{"step": step, "state": state, "padding": "x" * 250}])
            _count(node)
        node.metrics.log(step, loss=1.0 / step)
        node.progress("step", step / 30, {"step": step, "steps": 30, "loss": 1.0 / step})
        if step % 5 == 0 or node.stop():
            _save(node, step, state)
        if node.stop():
            raise Interrupted(f"stopped at step {step}")
    (node.out / "policy.json").write_text(json.dumps({"weights": state}))
    return Outcome(metrics={"loss": 1.0 / 30}, cost={"steps": 30.0})


def _count(node: NodeContext) -> None:
    """Count what would have been paid for; the only witness of repeats."""
    if path := os.environ.get("FAULT_PAID"):
        with Path(path).open("a") as f:
            f.write(f"{node.id}\n")


def _save(node: NodeContext, step: int, state: str) -> None:
    aside = node.checkpoints / f".step-{step:03d}.{os.getpid()}.0.tmp"
    aside.mkdir()
    write_json(aside / "state.json", {"step": step, "state": state})
    fault_point("checkpoint")
    replace_dir(aside, node.checkpoints / f"step-{step:03d}")


def evaluate(node: NodeContext) -> Outcome:
    digest = hashlib.sha256(_text(node).encode()).hexdigest()
    (node.out / "metrics.json").write_text(json.dumps({"success": int(digest[:4], 16) / 65535}))
    return Outcome(metrics={"success": int(digest[:4], 16) / 65535})


def gate(node: NodeContext) -> Outcome:
    answer = node.params.get("answer", "pass")
    (node.out / "gate.json").write_text(json.dumps({"answer": answer, "text": f"gate: {answer}"}))
    results: dict[str, Result] = {"pass": "completed", "fail": "gate_failed", "hold": "held"}
    return Outcome(result=results[answer], notes=[f"gate: {answer}"])


def promote(node: NodeContext) -> Outcome:
    (node.out / "promotion.json").write_text(json.dumps({"version": 1}))
    return Outcome()


def report(node: NodeContext) -> Outcome:
    (node.out / "report.html").write_text(f"<p>{hashlib.sha256(_text(node).encode()).hexdigest()}</p>")
    return Outcome()


def choose(node: NodeContext) -> Outcome:
    (node.out / "decision.json").write_text(json.dumps({"go": node.params["go"], "reason": "as told"}))
    return Outcome()


def hang(node: NodeContext) -> Outcome:
    """Never look at the stop flag."""
    time.sleep(60)
    return Outcome()


ENTRIES = {
    "data.problems": "data",
    "data.apart": "apart",
    "policy.init": "initial",
    "train.sft": "train",
    "train.grpo": "hang",
    "evaluate": "evaluate",
    "choose": "choose",
    "gate": "gate",
    "promote": "promote",
    "report": "report",
}


def entry_for(kind: str) -> str:
    return f"tests.faults.bodies:{ENTRIES[kind]}"
