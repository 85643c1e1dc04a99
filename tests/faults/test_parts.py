"""What the fault tests say of themselves: which part is lacking, and which steps were trained again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.running import redone

ROOT = Path(__file__).parents[2]
CASE = "from tests.parts import installed\ndef test_it():\n    installed('no-such-program')\n"


@pytest.mark.parametrize(("variables", "code", "said"), [({}, 0, "1 skipped"), ({"CI": "true"}, 1, "1 failed")])
def test_a_part_that_is_absent(variables: dict[str, str], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CASE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -ra --import-mode=importlib\n")
    env = {k: v for k, v in os.environ.items() if k not in ("CI", "PYTEST_ADDOPTS")} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, env=env | variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr
    assert "system part absent: no-such-program" in done.stdout
    counted = "1 tests were left out for want of a system part: no-such-program (1)"
    assert (counted in done.stdout) == (code == 0)


@pytest.mark.parametrize(
    ("lines", "again"),
    [
        (["1 step 1", "1 step 2", "1 saved 2", "2 step 3"], 0),
        (["1 step 1", "1 saved 1", "1 step 2", "1 step 3", "2 step 2"], 2),
        (
            ["1 step 1", "1 step 2", "1 step 3", "1 step 4", "1 step 5", "2 step 6"],
            0,
        ),  # saved, and killed before it said so
        (["1 step 1", "1 saved 1", "1 step 2", "2 step 1"], None),  # it began anew
        ([*(f"1 step {i}" for i in range(1, 8)), "2 step 1"], None),  # more than one interval
    ],
)
def test_steps_that_are_trained_again_are_counted(lines: list[str], again: int | None, tmp_path: Path) -> None:
    (tmp_path / "home.steps").write_text("".join(f"learn {line}\n" for line in lines))
    if again is None:
        with pytest.raises(AssertionError):
            redone(tmp_path / "home")
    else:
        assert redone(tmp_path / "home") == again
