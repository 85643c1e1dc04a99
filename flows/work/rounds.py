"""Bodies of a round's beginning and of its decisions.

`round.start`: which policy it begins with. `round.evidence`: what is known then. `round.proceed`: whether it goes on
after its remedies. `round.choose`: whether a later round runs.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work.lines import read_rows
from specs.errors import StateError
from tasks.files import copy_tree, write_json
from tasks.judging.results import Unusable, try_evaluation


@dataclass(frozen=True, slots=True)
class _Choice:
    """The policy of a round, and the champion of that moment: candidates, `champion`, or `before`: that of the round before."""

    policy: str
    why: str
    champion: str | None


def start(node: NodeContext) -> Outcome:
    """Link the policy that the round begins with: writes `policy/` and nothing else, so that a key is the policy's.

    The candidate, unless its gate failed; then the champion, or where there is none the candidate all the same.
    """
    chosen = _chosen(node)
    _link(_policy(node, chosen.policy), node.out / "policy")
    return Outcome(notes=[f"round {node.params['round']} starts from {_name(node, chosen.policy)}: {chosen.why}"])


def evidence(node: NodeContext) -> Outcome:
    """Link what is known as the round begins, for causes, gates and the round after it.

    Writes `start.json`, `evaluations/<set>/` of the policy that it begins with and, where there is a champion at this
    moment, its `baseline/<set>/` and its policy in `champion/`.
    """
    chosen = _chosen(node)
    _evaluations(node, chosen.policy, "evaluations")
    told: dict[str, Any] = {"round": node.params["round"], "policy": _name(node, chosen.policy), "why": chosen.why}
    told["baseline"] = None
    if chosen.champion is not None:
        told["baseline"] = _name(node, chosen.champion)
        _evaluations(node, chosen.champion, "baseline")
        _link(_policy(node, chosen.champion), node.out / "champion")
    write_json(node.out / "start.json", told)
    return Outcome()


def _chosen(node: NodeContext) -> _Choice:
    params = node.params
    record = _read(node.inputs["gate"] / "gate.json") if "gate" in node.inputs else {}
    candidate = record.get("candidate") or params["candidates"][-1]
    answer, failed = record.get("answer"), record.get("result") == "gate_failed"
    if answer in ("pass", "already_promoted") and params["promotes"]:
        return _Choice(candidate, "its gate promotes it", candidate)
    known = "champion" if params["champion"] else None
    if "before" in node.inputs:
        known = None if _name(node, "before") is None else "before"
    if answer == "superseded" and known is not None:
        return _Choice(known, f"it took the place of {candidate}", known)
    if failed and params["start_from"] == "candidate_or_champion":
        if known is not None:
            return _Choice(known, f"the gate of {candidate} failed", known)
        return _Choice(candidate, "its gate failed, but there is no champion to start from", None)
    alone = "rounds alone were asked for" if candidate == "champion" else "no gate judged it"
    why = alone if answer is None else f"its gate did not fail ({answer})".replace("_", " ")
    return _Choice(candidate, "its gate failed, and start_from is candidate" if failed else why, known)


def _name(node: NodeContext, policy: str) -> str | None:
    """Return what a policy is called; the champion handed on by the round before keeps its name."""
    return _read(node.inputs["before"] / "start.json")["baseline"] if policy == "before" else policy


def _policy(node: NodeContext, policy: str) -> Path:
    return node.inputs["before"] / "champion" if policy == "before" else node.inputs[f"policy.{policy}"] / "policy"


def _evaluations(node: NodeContext, policy: str, name: str) -> None:
    if policy == "before":
        _link(node.inputs["before"] / "baseline", node.out / name)
        return
    for which in node.params["sets"]:
        folder = node.inputs.get(f"eval.{policy}.{which}")
        if folder is not None:
            _link(folder, node.out / name / which)


def _link(source: Path, target: Path) -> None:
    """Link a folder's files; timings under `notes/` are no part of what a round depends on."""
    if source.is_dir():
        copy_tree(source, target, link=True, leave_out="notes")


def proceed(node: NodeContext) -> Outcome:
    """Decide whether the round goes on after its remedies: not where one stopped for the reward. Writes `decision.json`.

    Where it goes on, the decision is the same bytes whatever the remedies made: it moves no key of what trains.
    """
    stopped = any(a["do"] == "stop_for_reward_fix" for a in read_rows(node.inputs["remedy"] / "asks.jsonl"))
    reason = "the remedies are held until the reward is mended" if stopped else "no remedy stops for the reward"
    held = {"held": node.params["remedy"]} if stopped else {}
    write_json(node.out / "decision.json", {"go": not stopped, "reason": reason, **held})
    return Outcome(metrics={"go": float(not stopped)}, notes=[reason])


def choose(node: NodeContext) -> Outcome:
    """Decide whether the round runs: not where all of the last rounds gained nothing, or the last one was stopped.

    Writes `decision.json`.
    """
    gains = [_gain(node, int(k), names) for k, names in node.params["candidates"].items()]
    enough = len(gains) >= int(node.params["no_gain_rounds"])
    stop = enough and not any(gained for gained, _ in gains)
    reason = "; ".join(text for _, text in gains)
    if "proceed" in node.inputs and _read(node.inputs["proceed"] / "decision.json")["go"] is False:
        stop, reason = True, "the round before was stopped for the reward"
    if stop:
        reason += f": round {node.params['round']} is left out"
    write_json(node.out / "decision.json", {"go": not stop, "reason": reason})
    return Outcome(metrics={"go": float(not stop)}, notes=[reason])


def _gain(node: NodeContext, number: int, names: list[str]) -> tuple[bool, str]:
    """Return whether a round gained, in sampled success, and a sentence about it."""
    which = node.params["gain_on"]
    gate = node.inputs.get(f"gate.{number}")
    record = _read(gate / "gate.json") if gate is not None else {}
    candidate = record.get("candidate") or names[-1]
    before = _success(node.inputs.get(f"evidence.{number}"), f"evaluations/{which}")
    after = _success(node.inputs.get(f"eval.{number}.{candidate}"), "")
    if before is None or after is None:
        return False, f"round {number}: success on {which} was not measured, which is no gain"
    text = f"round {number}: success on {which} went from {before:.3f} to {after:.3f}"
    if record.get("result") == "gate_failed":
        return False, f"{text}, and its gate failed"
    return after > before, f"{text}, {'a gain' if after > before else 'no gain'}"


def _success(folder: Path | None, below: str) -> float | None:
    found = try_evaluation(None if folder is None else folder / below)
    return None if isinstance(found, Unusable) else found.metrics["metrics"]["success"]["value"]


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise StateError(f"{path}: cannot be read ({e}); run the node that makes it again") from e
