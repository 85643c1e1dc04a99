"""What the faults are measured against."""

from typing import Any

import pytest

from tests.faults.running import CHAIN, run, snapshot


@pytest.fixture(scope="session")
def ref(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what an undisturbed run of the reference program leaves."""
    home = tmp_path_factory.mktemp("campaign") / "home"
    code, out, err = run(home, **CHAIN)
    assert code == 0, out + err
    return snapshot(home)
