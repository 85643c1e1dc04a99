"""A test that lacks its system part says so by name and is counted; where CI is set it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
