"""Bodies of choices, torch-free, as they run in the driver: whether a stage runs after its preflight; which learner goes on."""

import json
from pathlib import Path
from typing import Any

from flows.context import NodeContext, Outcome
from specs.errors import StateError, TrainingError
from specs.stages import Needs
from tasks.files import copy_tree, write_json
from tasks.judging.measures import measure
from tasks.judging.needs import unmet
from tasks.judging.results import Unusable, try_evaluation

_PARTS = ("policy", "adapter", "trajectories")
"""Folders that a learner hands on."""


def choose(node: NodeContext) -> Outcome:
    """Decide whether the stage runs; writes `decision.json`. TrainingError where it may not and nothing is left."""
    figures = read_json(node, "preflight", "preflight.json")
    missing = unmet(Needs.model_validate(node.params["needs"]), figures)
    if missing and node.params["last"]:
        raise TrainingError(
            f"stage {node.params.get('stage', node.id)}: the preflight says that it cannot learn: {'; '.join(missing)}. "
            "Ways out: train on demonstrations (sft) or verified rollouts (rft) first, set else_first: rft (or raise "
            "tries), choose easier problems, or lower needs knowingly"
        )
    reason = "; ".join(missing) if missing else f"success {figures['success']:.3f}: every need is met"
    write_json(node.out / "decision.json", {"go": not missing, "reason": reason})
    return Outcome(metrics={"go": float(not missing)}, notes=[reason])


def read_json(node: NodeContext, name: str, file: str) -> dict[str, Any]:
    """Return a file of an input node. StateError where it cannot be read."""
    path = node.inputs[name] / file
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise StateError(f"{path}: cannot be read ({e}); run the node that makes it again") from e


def best(node: NodeContext) -> Outcome:
    """Hand on the learner with the highest success, the first of equals: writes `best.json`, links `policy/` and rollouts."""
    count, asked = int(node.params["learners"]), node.params["set"]
    found = {k: _success(node.inputs[f"eval.{k}"]) for k in range(1, count + 1)}
    chosen = max(found, key=lambda k: (found[k], -k))
    for part in _PARTS:
        if (folder := node.inputs[f"learner.{chosen}"] / part).is_dir():
            copy_tree(folder, node.out / part, link=True)
    write_json(
        node.out / "best.json", {"learner": chosen, "set": asked, "success": {str(k): v for k, v in found.items()}}
    )
    told = ", ".join(f"{k}: {value:.3f}" for k, value in found.items())
    metrics: dict[str, float | None] = {f"success_{k}": value for k, value in found.items()}
    return Outcome(
        metrics=metrics | {"learner": float(chosen)}, notes=[f"learner {chosen} goes on; success on {asked}: {told}"]
    )


def _success(folder: Path) -> float:
    found = try_evaluation(folder)
    if isinstance(found, Unusable):
        raise StateError(f"{folder}: {found.reason}; learners cannot be compared without it. Run the evaluation again")
    values = measure(found, "success")
    if not values.by_problem:
        raise StateError(
            f"{folder}: no problem has a verdict, so that learners cannot be compared; mend what judges them"
        )
    return values.mean
