"""Bodies of `promote` (a gate's candidate becomes the champion) and `policy.registered` (a champion as an input)."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from flows import registry
from flows.context import NodeContext, Outcome
from flows.durable import write_json
from specs.errors import DataError, StateError


def home_of(node: NodeContext) -> Path:
    """Return the folder with the registry: `execution["home"]`, else the one that the node's folder lies in."""
    named = node.execution.get("home")
    return Path(named) if named else node.out.parents[2]


def promote(node: NodeContext) -> Outcome:
    """Do what the gate's answer asks for and write `promotion.json`.

    Pass: the candidate becomes the champion, once for this gate record and policy. Inconclusive: it becomes the
    challenger, for a person to decide. Fail, or superseded by a later champion: nothing.
    """
    record = _gate(node.inputs["gate"] / "gate.json")
    program, answer, stage = str(node.params["program"]), record["answer"], record["candidate"]
    if answer == "superseded":
        body = {"answer": answer, "candidate": stage, "result": "nothing"}
        return _written(node, body, f"{stage} was the champion before, and another took its place")
    if answer == "fail" or stage is None:
        return _written(node, {"answer": answer, "candidate": stage, "result": "nothing"}, "the gate did not pass")
    policy = _policy(node, stage)
    gate = registry.gate_digest(node.inputs["gate"] / "gate.json")
    execution = node.execution.get("execution")
    candidate = registry.Candidate(policy, stage, gate, execution, f"gate {record['gate']}: {_why(record)}")
    home = home_of(node)
    if answer == "inconclusive":
        version = registry.challenge(home, program, candidate)
        text = (
            f"{program} v{version.version} ({stage}) is the challenger; "
            f"`tutelage promote {program} v{version.version} --reason TEXT` makes it the champion"
        )
        body = {"answer": answer, "candidate": stage, "result": "challenger", "version": version.version}
        return _written(node, {**body, "digest": version.digest}, text)
    promotion = registry.promote(home, program, candidate)
    body = {
        "answer": answer,
        "candidate": stage,
        "result": promotion.result,
        "version": promotion.version,
        "previous": promotion.previous,
        "digest": promotion.digest,
    }
    if promotion.result == "already_promoted":
        write_json(node.out / "promotion.json", body)
        text = f"{program} v{promotion.version} ({stage}) is the champion already"
        return Outcome("already_promoted", {"version": float(promotion.version)}, notes=[text])
    return _written(node, body, f"{program} v{promotion.version} ({stage}) is the champion")


def _written(node: NodeContext, body: dict[str, Any], text: str) -> Outcome:
    write_json(node.out / "promotion.json", body)
    metrics: dict[str, float | None] = {"promoted": float(body["result"] == "promoted")}
    if "version" in body:
        metrics["version"] = float(body["version"])
    return Outcome(metrics=metrics, notes=[text])


def _why(record: dict[str, Any]) -> str:
    said = record.get("person")
    return str(record["answer"]) if said is None else f"{said['verdict']} by {said['by']}: {said['why']}".rstrip(": ")


def _gate(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
        return {**record, "answer": record["answer"], "candidate": record["candidate"], "gate": record["gate"]}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StateError(f"{path}: no usable gate record ({e}); run the program again from its gate") from e


def _policy(node: NodeContext, stage: str) -> Path:
    folder = node.inputs.get(f"policy.{stage}")
    if folder is None or not (folder / "policy").is_dir():
        have = ", ".join(sorted(n.removeprefix("policy.") for n in node.inputs if n.startswith("policy."))) or "none"
        raise DataError(f"{node.id}: the gate chose {stage!r}, but its policy is not an input; there is: {have}")
    return folder / "policy"


def registered(node: NodeContext) -> Outcome:
    """Put a registered policy, checked against its digest, into `policy/`. StateError where it is damaged."""
    number, digest, folder = node.params["version"], node.params["digest"], node.params["folder"]
    source = home_of(node) / folder
    version = registry.Version(int(number), digest, folder, "", None, None, "")
    registry.checked_folder(home_of(node), version)
    shutil.copytree(source, node.out / "policy", copy_function=link_or_copy)
    return Outcome(metrics={"version": float(number)})


def link_or_copy(source: str, target: str) -> str:
    """Link a file, or copy it where links cannot be made."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
    return target
