"""Bodies of the reference plan: pure Python, deterministic, slow enough to be killed, some with checkpoints."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.context import NodeContext, Outcome, Result
from flows.registry import Candidate, gate_digest
from flows.registry import promote as switch
from specs.errors import Interrupted, StateError, TrainingError
from specs.records import Trajectory
from tasks.files import Ledger, fault_point, replace_dir, write_dir, write_durable, write_json
from tasks.loops.rollout_ledger import RolloutLedger

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
    newest = node.checkpoints / "newest" / "state.json"
    if newest.exists():
        step = json.loads(newest.read_text())["step"]  # older where kills came between the checkpoint and this
        assert step <= first, f"newest holds step {step}, the last checkpoint {first}"
        assert node.checkpoints / f"step-{step:03d}" in done, f"newest holds step {step}, which no checkpoint has"
    node.metrics.resume_from(first)
    known = {r["step"] for r in rollouts}
    for step in range(first + 1, 31):
        time.sleep(PAUSE)
        state = hashlib.sha256(state.encode()).hexdigest()
        _witness(node, "step", step)
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


def _count(node: NodeContext, key: str = "") -> None:
    """Count what would have been paid for; the only witness of repeats."""
    if path := os.environ.get("FAULT_PAID"):
        with Path(path).open("a") as f:
            f.write(f"{node.id} {key}\n")


def _witness(node: NodeContext, what: str, step: int) -> None:
    """Write down a step that was trained or saved, where no body reads it; `running.redone` does."""
    if path := os.environ.get("FAULT_STEPS"):
        with Path(path).open("a") as f:
            f.write(f"{node.id} {os.getpid()} {what} {step}\n")


IN_FLIGHT = 4
CALLS = 24
Keep = Callable[[str, str], None]


def _replies(node: NodeContext, padding: str) -> tuple[dict[str, str], Keep]:
    """Return what was paid for, by key, and what keeps another one."""
    ledger = Ledger(node.checkpoints / "calls.jsonl")
    known = {key: r["text"] for (key,), r in ledger.keyed("key").items()}
    if ledger.torn or ledger.repeated:
        print(
            f"{ledger.path}: {ledger.torn} torn bytes and {ledger.repeated} repeated records were left out", flush=True
        )
    return known, lambda key, text: ledger.append([{"key": key, "text": text, "padding": padding}])


def _rollouts(node: NodeContext, padding: str) -> tuple[dict[str, str], Keep]:
    """Return what was rolled out, by problem, and what keeps another one: the product's own ledger."""
    ledger, one = RolloutLedger(node.checkpoints / "trajectories.jsonl"), threading.Lock()
    known = {t.problem_id: t.answer or "" for t in ledger.read().values()}
    for note in ledger.notes():
        print(note, flush=True)

    def keep(key: str, text: str) -> None:
        made = Trajectory(
            key, key, "", "", "", "", key, 0, 0, [1], [3], [-0.5], [("v", 1)], [], "finished", {"padding": padding},
            answer=text,
        )  # fmt: skip
        with one:
            ledger.keep(made)

    return known, keep


def pay(node: NodeContext) -> Outcome:
    """Twenty-four paid calls (`params.what`: reply or rollout), four in flight, each kept in a ledger as it comes."""
    what = str(node.params["what"])
    padding = "x" * int(os.environ.get(f"FAULT_PAD_{what.upper()}", "250"))
    known, keep = (_replies if what == "reply" else _rollouts)(node, padding)
    ending = threading.Event()

    def call(key: str) -> None:
        if ending.is_set() or node.stop():
            return
        _count(node, key)
        time.sleep(PAUSE)
        known[key] = hashlib.sha256(f"{node.seed}/{what}/{key}".encode()).hexdigest()
        try:
            fault_point(f"before_{what}")
            keep(key, known[key])
            fault_point(f"after_{what}")
        except (StateError, OSError):  # what cannot be kept is not bought
            ending.set()
            raise

    todo = [f"{what}{i}" for i in range(CALLS) if f"{what}{i}" not in known]
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for future in [pool.submit(call, key) for key in todo]:
            future.result()
    if len(known) < CALLS:
        raise Interrupted(f"stopped with {len(known)} of {CALLS}")
    lines = [json.dumps({"key": k, "text": known[k]}) + "\n" for k in sorted(known)]
    write_durable(node.out / f"{what}.jsonl", "".join(lines))
    return Outcome(cost={"rollouts": float(CALLS)})


def verify(node: NodeContext) -> Outcome:
    lines = [json.loads(x) for x in (node.inputs["rollouts"] / "rollout.jsonl").read_text().splitlines()]
    verdicts = [{"key": r["key"], "reward": int(r["text"][:2], 16) / 255} for r in lines]
    write_durable(node.out / "verdicts.json", json.dumps(verdicts))
    return Outcome(metrics={"reward": sum(v["reward"] for v in verdicts) / len(verdicts)})


def learn(node: NodeContext) -> Outcome:
    """Thirty steps, a checkpoint every five: of a real, tiny model, or (`params.chain`) of a chain of digests."""
    if node.params.get("chain"):
        outcome = train(node)
        (node.out / "policy").mkdir()
        (node.out / "policy" / "policy.json").write_text((node.out / "policy.json").read_text())
        return outcome
    from tests.faults.learning import STEPS
    from tests.faults.learning import learn as train_model

    def step(number: int, loss: float) -> bool:
        _witness(node, "step", number)
        node.progress("step", number / STEPS, {"step": number, "steps": STEPS, "loss": loss})
        return node.stop()

    last, weights, damaged = train_model(
        node.checkpoints / "state",
        node.seed,
        _text(node),
        step=step,
        saved=lambda number: _witness(node, "saved", number),
    )
    if not weights:
        raise Interrupted(f"stopped at step {last}")
    for text in damaged:
        print(text, flush=True)
    (node.out / "policy").mkdir()
    write_json(node.out / "policy" / "policy.json", {"weights": weights})
    write_json(node.out / "policy.json", {"weights": weights})
    return Outcome(cost={"steps": float(STEPS)})


def decide(node: NodeContext) -> Outcome:
    evidence = hashlib.sha256(_text(node).encode()).hexdigest()
    record = {"gate": "ship", "answer": node.params.get("answer", "pass"), "candidate": "learn", "evidence": evidence}
    write_json(node.out / "gate.json", record)
    return Outcome(notes=["gate ship: pass"])


def release(node: NodeContext) -> Outcome:
    """The switch of the champion, by the registry of the product."""
    gate = node.inputs["gate"] / "gate.json"
    candidate = Candidate(node.inputs["policy.learn"] / "policy", "learn", gate_digest(gate), None, "gate ship: pass")
    promotion = switch(node.out.parents[2], str(node.params["program"]), candidate)
    write_json(node.out / "promotion.json", {"version": promotion.version, "digest": promotion.digest})
    return Outcome()


def _save(node: NodeContext, step: int, state: str) -> None:
    aside = node.checkpoints / f".step-{step:03d}.{os.getpid()}.0.tmp"
    aside.mkdir()
    padding = "x" * int(os.environ.get("FAULT_PAD_CHECKPOINT", "0"))
    write_json(aside / "state.json", {"step": step, "state": state, "padding": padding})
    fault_point("checkpoint")
    fault_point("before_checkpoint")
    replace_dir(aside, node.checkpoints / f"step-{step:03d}")
    _witness(node, "saved", step)
    write_dir(node.checkpoints / "newest", lambda folder: write_json(folder / "state.json", {"step": step}))
    fault_point("after_checkpoint")


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
    "train.policy_gradient": "hang",
    "evaluate": "evaluate",
    "choose": "choose",
    "gate": "gate",
    "promote": "promote",
    "report": "report",
}


CAMPAIGN = {
    **ENTRIES,
    "collect": "pay",
    "preflight": "verify",
    "train.rft": "learn",
    "gate": "decide",
    "promote": "release",
}


def campaign_entry(kind: str) -> str:
    return f"tests.faults.bodies:{CAMPAIGN[kind]}"


def entry_for(kind: str) -> str:
    return f"tests.faults.bodies:{ENTRIES[kind]}"
