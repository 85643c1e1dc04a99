"""Body of `choose`: does what the preflight found meet what the stage needs? Torch-free, it runs in the driver."""

import json
from typing import Any

from flows.context import NodeContext, Outcome
from specs.errors import StateError, TrainingError
from specs.stages import Needs
from tasks.files import write_json
from tasks.judging.needs import unmet


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
