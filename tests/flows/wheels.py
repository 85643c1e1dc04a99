"""Small programs with a flywheel, for tests of the planner."""

from tests.flows.programs import SMALL, Json, changed

WHEEL: Json = {
    "mine": {"from": ["train"], "problems": 60, "samples": 2},
    "causes_from": ["golden"],
    "remedies": {
        "argument": {"do": "repair", "quota": 40},
        "wrong_tool": {"do": "repair", "quota": 20},
        "premature_stop": {"do": "hard_pool", "quota": 30},
    },
    "round": {
        "stages": [
            {
                "id": "mend",
                "algorithm": {"type": "sft"},
                "data": {"anchor": 0.5, "repaired": 0.3, "successes": 0.2},
            },
            {"id": "harden", "algorithm": {"type": "rft"}, "data": {"hard": 0.5, "train": 0.5}},
        ]
    },
    "rounds": 2,
    "stop": {"gain_on": "golden"},
}
REGRESS: Json = {"kind": "pool", "pool": "regression", "role": "regression"}


def with_pool(data: Json) -> Json:
    """Return a program that asks the regression pool."""
    data = changed(data, "data.regress", REGRESS)
    data = changed(data, "evaluation.at_the_end", ["golden", "hidden", "regress"])
    require = [*data["gates"]["ship"]["require"], {"metric": "regressed_cases", "set": "regress", "at_most": 0}]
    return changed(data, "gates.ship.require", require)


MAIN = with_pool(SMALL)
TURNING = changed(MAIN, "flywheel", WHEEL)
"""Two rounds after sft, rft and grpo."""
