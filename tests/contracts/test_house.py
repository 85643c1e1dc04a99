"""Rules of the house that no linter knows: light commands, and packages that are ours."""

import subprocess
import sys
from pathlib import Path

import pytest

import flows
import specs
import tasks
from tests.contracts.sources import ROOT

HEAVY = ("torch", "prefect", "mlflow", "dvc", "numpy", "transformers", "pyarrow", "httpx", "rich", "sqlalchemy")
PROBE = """
import sys
from flows.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as e:
    code = e.code
heavy = sorted(m for m in {heavy!r} if m in sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else code)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["check", "--help"], 0),
        (["check", "specs/programs/quickstart.yaml"], 0),
        (["check", "specs/programs/quickstart.yaml", "--set", "sed=1"], 2),
        (["schema"], 0),
    ],
)
def test_light_commands_import_nothing_heavy(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=HEAVY), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr


def test_a_check_imports_only_what_its_program_uses() -> None:
    """Nothing that looks for plugins, no other algorithm, no section that is not written."""
    left_out = ("importlib.metadata", "specs.group_relative", "specs.distillation", "specs.replay", "specs.teachers")
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=left_out), "check", "specs/programs/quickstart.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_specs_import_nothing_heavy() -> None:
    names = sorted(f"specs.{p.stem}" for p in (ROOT / "specs").glob("*.py") if p.stem != "__init__")
    code = f"import sys, {', '.join(names)}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_packages_are_ours() -> None:
    for package in (specs, tasks, flows):
        assert Path(package.__file__ or "").parent == ROOT / package.__name__
