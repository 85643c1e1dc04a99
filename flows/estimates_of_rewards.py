"""How much the nodes of reward models will take. Pure, torch-free arithmetic."""

from collections.abc import Mapping
from typing import Any

from flows.estimates import Estimate, Sizes, preference, rollouts_of


def turns(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the rollouts whose turns are labelled."""
    asked, names = params["turns"], params["data"]
    problems = min(asked["problems"] or sizes.count(names), sizes.count(names))
    return rollouts_of(params, sizes, names, problems * asked["samples"])


def reward_model(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate training on pairs, or on as many trajectories with labelled turns."""
    algorithm = params["algorithm"]
    pairing = algorithm["pairing"]
    if algorithm["learns"] == "turns":
        asked = algorithm["turns"]
        pairing = pairing | {
            "samples": asked["samples"],
            "problems": asked["problems"],
            "choose": "all",
            "rejected": "failed",
        }
    like = {"type": "simpo", "pairing": pairing, "pairs_per_step": max(1, algorithm["rows_per_step"] // 2)}
    return preference({**params, "algorithm": {**algorithm, **like}}, sizes)
