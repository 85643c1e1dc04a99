"""The smallest form of a program: the same graph with every size at its least, to see whether it runs at all."""

import json
from typing import Any

from specs.algorithms import POLICY_GRADIENTS, PREFERENCES
from specs.errors import ProgramError
from specs.program import Program

_PROBLEMS = 12
_DEMONSTRATIONS = {"scratch": 240, "pretrained": 24}
_EPOCHS = {"scratch": 8.0, "pretrained": 1.0}
"""Enough for a policy from nothing to learn to end its turns; one that cannot gives later stages nothing to do."""
_CUT_OF_TWO = 0.5
"""Standard deviations at which a reward is cut in a group of two, where none is further than 0.7 from the mean."""
SIZES = {
    "sft": {},
    "rft": {
        "samples": 2, "rounds": 1, "problems": 8, "epochs": 1.0, "min_gain": 0.0,
        "require_success": False, "threshold": None, "band": [0.0, 1.0], "max_tool_errors": None, "max_truncated": 1.0,
    },
    "reward_weighted": {"samples": 2, "problems": 8, "epochs": 1.0, "require_success": False, "max_truncated": 1.0},
    **{name: {"epochs": 1.0} for name in PREFERENCES},
    "short_opd": {
        "steps": 2, "group_size": 2, "problems_per_step": 4, "updates_per_batch": 1, "min_coverage": 0.0,
    },
    "opd": {
        "steps": 2, "group_size": 2, "problems_per_step": 4, "updates_per_batch": 1, "max_truncated": 1.0,
        "min_coverage": 0.0,
    },
    **{
        name: {"samples": 2, "problems": 8, "rounds": 1, "epochs": 1.0, "per_step": 4, "at_least": 0, "max_truncated": 1.0}
        for name in ("from_teacher", "soft_label", "action_distill")
    },
    "reward_model": {"epochs": 1.0, "least_accuracy": 0.0}, "prune": {"calibration": 8}, "quantize": {"calibration": 8},
    **{
        name: {
            "steps": 2, "group_size": 2, "problems_per_step": 4, "updates_per_batch": 1,
            "max_flat_steps": None, "max_truncated": 1.0,
        }
        for name in POLICY_GRADIENTS
    },
}  # fmt: skip
"""The least of each algorithm, by type."""


def smoke(program: Program) -> Program:
    """Return the program with the least of everything, under a name of its own, and with nothing promoted."""
    data: dict[str, Any] = program.model_dump(mode="json", by_alias=True)
    data["program"] = f"{program.program[:57]}-smoke"
    start = program.policy.init.kind
    for source in data["data"].values():
        if "size" in source:
            most = _DEMONSTRATIONS[start] if source["kind"] == "demonstrations" else _PROBLEMS
            source["size"] = min(source["size"], most)
    for teacher in data["teachers"].values():
        if teacher["kind"] == "trained":
            teacher["algorithm"]["epochs"] = 1.0
    for stage in data["stages"]:
        _smaller(stage, start)
    if data["flywheel"] is not None:
        _one_round(data["flywheel"], start)
    for gate in data["gates"].values():
        gate["on_pass"] = "nothing"
        gate["on_inconclusive"] = "pass_on"
    try:
        return Program.model_validate_json(json.dumps(data))
    except ValueError as e:
        raise ProgramError(f"{program.program}: --smoke: its smallest form is no valid program ({e})") from e


def _smaller(stage: dict[str, Any], start: str) -> None:
    _shrink(stage["algorithm"])
    if stage["algorithm"]["type"] == "sft":
        stage["algorithm"]["epochs"] = _EPOCHS[start]
    stage["preflight"] = {"problems": 4, "samples": 2}
    if stage["algorithm"]["type"] in POLICY_GRADIENTS:
        stage["needs"] = {"success": 0.0, "positive_problem_rate": 0.0, "mixed_group_rate": 0.0}
    if isinstance(stage["else_first"], dict):
        _shrink(stage["else_first"])


def _one_round(flywheel: dict[str, Any], start: str) -> None:
    """Shrink the flywheel to one round with small pools."""
    flywheel["rounds"] = 1
    flywheel["mine"] |= {"problems": _PROBLEMS, "samples": 1}
    flywheel["siblings"] |= {"per_case": 1, "max_unsolved": 1.0}
    flywheel["pools"] = {"successes": _PROBLEMS, "anchor": _PROBLEMS}
    for remedy in flywheel["remedies"].values():
        if "quota" in remedy:
            remedy["quota"] = min(remedy["quota"], _PROBLEMS)
    for stage in flywheel["round"]["stages"]:
        _smaller(stage, start)
        if stage["algorithm"]["type"] == "sft":
            stage["algorithm"]["epochs"] = 1.0


def _shrink(algorithm: dict[str, Any]) -> None:
    algorithm.update(SIZES[algorithm["type"]])
    learns = algorithm.get("learns")  # of a reward model, which accepts no setting that it does not read
    if "pairing" in algorithm and learns != "turns":
        algorithm["pairing"] |= {"samples": 4, "problems": 8, "margin": 0.0, "at_least": 0, "max_truncated": 1.0}
    if learns == "turns":
        algorithm["turns"] |= {"samples": 4, "problems": 8, "at_least": 0, "max_truncated": 1.0}
    if algorithm.get("resample"):
        algorithm["resample"] = {"max_rounds": 1, "when_short": "train"}
    _shrink_policy_gradient(algorithm)


def _shrink_policy_gradient(algorithm: dict[str, Any]) -> None:
    """Shrink what only policy gradients have."""
    if algorithm.get("experience"):  # so little of another stage may hold no success, without which this one stops
        algorithm |= {"experience": []} | ({} if algorithm["learners"] else {"experience_per_step": 16})
    if algorithm.get("learners"):
        algorithm["learners"]["turns"] = 2
    if algorithm.get("clip_rewards"):
        algorithm["clip_rewards"] = _CUT_OF_TWO
    if algorithm.get("distill"):
        algorithm["distill"]["min_coverage"] = 0.0
    if algorithm.get("best_of", 1) > 1:
        algorithm["best_of"] = 2
    if replay := algorithm.get("replay"):
        if replay["history"]:
            replay["history"] |= {"capacity": 8, "per_step": 2}
        if replay["demonstrations"]:
            replay["demonstrations"]["per_step"] = 2
    if algorithm.get("critic"):
        algorithm["critic"]["warmup_steps"] = min(1, algorithm["critic"]["warmup_steps"])
