"""System parts that a test needs: without one it is skipped under one name, and where CI is set it fails."""

import os
import shutil
from typing import NoReturn

import pytest

ABSENT = "system part absent: "


def lacking(part: str) -> NoReturn:
    """Leave the test out for want of a part; fail where CI is set."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{ABSENT}{part}")
    raise AssertionError("unreachable")


def installed(program: str) -> str:
    """Return the path of a program, or leave the test out."""
    return shutil.which(program) or lacking(program)
