"""`dvc.yaml` is thin: it calls commands that exist, with files and parameters that exist."""

from pathlib import Path

import yaml

from flows.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def test_dvc_yaml_calls_commands_and_names_parameters_that_exist():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for stage in stages.values():
        for call in stage["cmd"].split("&&"):
            words = call.split()
            assert words[0] == "tutelage"
            assert words[1] in COMMANDS
        for entry in stage["params"]:
            for file, names in entry.items():
                program = yaml.safe_load((ROOT / file).read_text())
                assert set(names) <= set(program), f"dvc.yaml: {file} has no {set(names) - set(program)}"
        assert not stage.get("outs"), "what a program makes is versioned by the program, not by dvc.yaml"
