"""The smallest form of a program: the same graph with every size at its least, to see whether it runs at all."""

from typing import Any

from specs.errors import ProgramError
from specs.program import Program

_PROBLEMS = 12
_SIZES = {
    "sft": {"epochs": 1.0},
    "rft": {"samples": 2, "rounds": 1, "problems": 8, "epochs": 1.0, "min_gain": 0.0},
    "grpo": {"steps": 2, "group_size": 2, "problems_per_step": 4, "updates_per_batch": 1, "max_flat_steps": 100},
}


def smoke(program: Program) -> Program:
    """Return the program with the least of everything, under a name of its own, and with nothing promoted."""
    data: dict[str, Any] = program.model_dump(mode="json", by_alias=True)
    data["program"] = f"{program.program[:57]}-smoke"
    for source in data["data"].values():
        if "size" in source:
            source["size"] = min(source["size"], 4 * _PROBLEMS if source["kind"] == "demonstrations" else _PROBLEMS)
    for stage in data["stages"]:
        _shrink(stage["algorithm"])
        stage["preflight"] = {"problems": 4, "samples": 2}
        if stage["algorithm"]["type"] == "grpo":
            stage["needs"] = {"success": 0.0, "positive_problem_rate": 0.0, "mixed_group_rate": 0.0}
        if isinstance(stage["else_first"], dict):
            _shrink(stage["else_first"])
    for gate in data["gates"].values():
        gate["on_pass"] = "nothing"
        gate["on_inconclusive"] = "pass_on"
    try:
        return Program.model_validate_json(_json(data))
    except ValueError as e:
        raise ProgramError(f"{program.program}: --smoke: its smallest form is no valid program ({e})") from e


def _shrink(algorithm: dict[str, Any]) -> None:
    algorithm.update(_SIZES[algorithm["type"]])


def _json(data: Any) -> str:
    import json

    return json.dumps(data)
