"""Bodies of `promote` (a gate's candidate becomes the champion) and `policy.registered` (a champion as an input)."""

import json
from pathlib import Path
from typing import Any

from flows import registry
from flows.context import NodeContext, Outcome
from flows.durable import copy_tree, write_json
from specs.errors import DataError, StateError


def home_of(node: NodeContext) -> Path:
    """Return the folder with the registry: `execution["home"]`, else the one that the node's folder lies in."""
    named = node.execution.get("home")
    return Path(named) if named else node.out.parents[2]


def promote(node: NodeContext) -> Outcome:
    """Do what the gate's answer asks for and write `promotion.json`.

    Pass: the candidate becomes the champion, once for this gate record and policy, in place of the one that it was
    judged against or of one that this run itself has promoted since. Where a person has put another there meanwhile, and
    where the gate is inconclusive, it becomes the challenger. Fail, or superseded by a later champion: nothing.
    """
    record = _gate(node.inputs["gate"] / "gate.json")
    answer, stage = record["answer"], record["candidate"]
    if answer == "superseded":
        return _nothing(node, record, f"{stage} was the champion before, and another took its place")
    if answer == "fail" or stage is None:
        return _nothing(node, record, "the gate did not pass")
    gate = registry.gate_digest(node.inputs["gate"] / "gate.json")
    reason = f"gate {record['gate']}: {_why(record)}"
    candidate = registry.Candidate(_policy(node, stage), stage, gate, node.run, reason)
    if answer == "inconclusive":
        return _undecided(node, record, candidate)
    if answer == "already_promoted":
        return _already(node, record, candidate)
    return _switched(node, record, candidate)


def _undecided(node: NodeContext, record: dict[str, Any], candidate: registry.Candidate) -> Outcome:
    program = str(node.params["program"])
    version = registry.challenge(home_of(node), program, candidate)
    text = (
        f"{program} v{version.version} ({candidate.stage}) is the challenger; "
        f"`tutelage promote {program} v{version.version} --reason TEXT` makes it the champion"
    )
    told = {"result": "challenger", "version": version.version, "digest": version.digest}
    return _written(node, record, told, text, champion=_promoted_before(node))


def _already(node: NodeContext, record: dict[str, Any], candidate: registry.Candidate) -> Outcome:
    """Say that the candidate is the champion; one that gave way since its gate looked is not put back."""
    home, program = home_of(node), str(node.params["program"])
    now, digest = registry.champion(home, program), registry.policy_digest(candidate.policy)
    if now is None or now.digest != digest:
        text = (
            f"{candidate.stage} was the champion as its gate looked and is not any more; only a person brings it back, "
            "with `tutelage promote` or `tutelage rollback`"
        )
        return _nothing(node, record, text)
    told = {"result": "already_promoted", "version": now.version, "digest": digest}
    return _written(node, record, told, f"{program} v{now.version} ({candidate.stage}) is the champion already", digest)


def _switched(node: NodeContext, record: dict[str, Any], candidate: registry.Candidate) -> Outcome:
    program = str(node.params["program"])
    known = _promoted_before(node)
    expected: str | None = record.get("champion") if known is None else known
    done = registry.promote(home_of(node), program, candidate, expected=expected)
    told = {"result": done.result, "version": done.version, "previous": done.previous, "digest": done.digest}
    name = f"{program} v{done.version} ({candidate.stage})"
    if done.result == "challenger":
        judged = "there being no champion" if expected is None else f"against the champion {expected[:12]}"
        text = (
            f"{name} passed, judged {judged}, but the champion was changed meanwhile: it is the challenger, and nothing "
            "was overwritten; run the program again with --refresh, which judges it against the champion of now, or "
            f"`tutelage promote {program} v{done.version} --reason TEXT`"
        )
        return _written(node, record, told, text)
    again = " already" if done.result == "already_promoted" else ""
    return _written(node, record, told, f"{name} is the champion{again}", done.digest)


def _promoted_before(node: NodeContext) -> str | None:
    """Return the champion that this run's promotions before this one have left; None where it is another's matter."""
    if "before" not in node.inputs:
        return None
    path = node.inputs["before"] / "promotion.json"
    try:
        return json.loads(path.read_bytes())["champion"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StateError(f"{path}: no usable record of a promotion ({e}); run the program again from its gate") from e


def _nothing(node: NodeContext, record: dict[str, Any], text: str) -> Outcome:
    return _written(node, record, {"result": "nothing"}, text, _promoted_before(node))


def _written(
    node: NodeContext, record: dict[str, Any], told: dict[str, Any], text: str, champion: str | None = None
) -> Outcome:
    """Write `promotion.json`; `champion` is the one that this run has left in place so far, as far as it made it one."""
    body = {"answer": record["answer"], "candidate": record["candidate"], **told, "champion": champion}
    write_json(node.out / "promotion.json", body)
    metrics: dict[str, float | None] = {"promoted": float(told["result"] == "promoted")}
    if "version" in told:
        metrics["version"] = float(told["version"])
    result = "already_promoted" if told["result"] == "already_promoted" else "completed"
    return Outcome(result, metrics=metrics, notes=[text])


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
    copy_tree(source, node.out / "policy", link=True)
    return Outcome(metrics={"version": float(number)})
