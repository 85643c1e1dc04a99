"""Bodies of `round.start` (which policy a round begins with) and `round.choose` (whether a later round runs)."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work.promotion import link_or_copy
from specs.errors import StateError
from tasks.files import write_json
from tasks.judging.results import Unusable, try_evaluation


@dataclass(frozen=True, slots=True)
class _Choice:
    """The policy of a round, and the champion of that moment; both are names of inputs, or `before`."""

    policy: str
    why: str
    champion: str | None


def start(node: NodeContext) -> Outcome:
    """Link the policy that the round begins with, its evaluations, and those of the champion that gates compare with.

    The candidate, unless its gate failed; then the champion, or where there is none the candidate all the same. Writes
    `policy/`, `evaluations/<set>/`, `baseline/<set>/` and `start.json`.
    """
    chosen = _chosen(node)
    told: dict[str, Any] = {"round": node.params["round"], "policy": chosen.policy, "why": chosen.why}
    if chosen.policy == "before":
        before = node.inputs["before"]
        told["policy"] = _read(before / "start.json")["policy"]
        _link(before / "policy", node.out / "policy")
        _link(before / "evaluations", node.out / "evaluations")
    else:
        _link(node.inputs[f"policy.{chosen.policy}"] / "policy", node.out / "policy")
        _evaluations(node, chosen.policy, "evaluations")
    told["baseline"] = chosen.champion
    if chosen.champion == "before":
        told["baseline"] = _read(node.inputs["before"] / "start.json")["baseline"]
        _link(node.inputs["before"] / "baseline", node.out / "baseline")
    elif chosen.champion is not None:
        _evaluations(node, chosen.champion, "baseline")
    write_json(node.out / "start.json", told)
    return Outcome(notes=[f"round {told['round']} starts from {told['policy']}: {chosen.why}"])


def _chosen(node: NodeContext) -> _Choice:
    params = node.params
    record = _read(node.inputs["gate"] / "gate.json") if "gate" in node.inputs else {}
    candidate = record.get("candidate") or params["candidates"][-1]
    answer = record.get("answer")
    later = "before" in node.inputs
    if answer in ("pass", "already_promoted") and params["promotes"]:
        return _Choice(candidate, "it was promoted just before", candidate)
    known = "before" if later else "champion" if params["champion"] else None
    if answer == "superseded" and known is not None:
        return _Choice(known, f"it took the place of {candidate}", known)
    if answer == "fail" and params["start_from"] == "candidate_or_champion":
        if known is not None:
            return _Choice(known, f"the gate of {candidate} failed", known)
        return _Choice(candidate, "its gate failed, but there is no champion to start from", None)
    words = {None: "no gate judged it", "fail": "its gate failed, and start_from is candidate"}
    return _Choice(candidate, words.get(answer, f"its gate did not fail ({answer})".replace("_", " ")), known)


def _evaluations(node: NodeContext, policy: str, name: str) -> None:
    for which in node.params["sets"]:
        folder = node.inputs.get(f"eval.{policy}.{which}")
        if folder is not None:
            _link(folder, node.out / name / which)


def _link(source: Path, target: Path) -> None:
    """Link a folder's files; timings under `notes/` are no part of what a round depends on."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=link_or_copy, ignore=shutil.ignore_patterns("notes"))


def choose(node: NodeContext) -> Outcome:
    """Decide whether the round runs: not where all of the last rounds gained nothing. Writes `decision.json`."""
    gains = [_gain(node, int(k), names) for k, names in node.params["candidates"].items()]
    enough = len(gains) >= int(node.params["no_gain_rounds"])
    stop = enough and not any(gained for gained, _ in gains)
    reason = "; ".join(text for _, text in gains)
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
    before = _success(node.inputs.get(f"start.{number}"), f"evaluations/{which}")
    after = _success(node.inputs.get(f"eval.{number}.{candidate}"), "")
    if before is None or after is None:
        return False, f"round {number}: success on {which} was not measured, which is no gain"
    text = f"round {number}: success on {which} went from {before:.3f} to {after:.3f}"
    if record.get("answer") == "fail":
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
