"""One driver at a time: the other refuses, names the owner and changes nothing."""

import os
import time
from pathlib import Path

from flows.leases import driver_lease
from tests.faults.running import finish, run, start


def _everything(home: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(home.rglob("*")) if p.is_file()}


def test_a_second_driver_refuses_names_the_owner_and_changes_no_file(tmp_path: Path):
    home = tmp_path / "home"
    assert run(home, options={"request": {"until": "data.apart"}})[0] == 0
    with driver_lease(home / "programs" / "reference" / "lease", "reference"):
        before = _everything(home)
        began = time.monotonic()
        code, _, err = run(home)
        assert code == 9
        assert time.monotonic() - began < 2.5
        assert _everything(home) == before
    assert f"process {os.getpid()} on " in err
    assert "since 20" in err
    assert "--wait" in err


def test_of_two_that_start_at_once_exactly_one_works(tmp_path: Path):
    for i in range(2):
        home = tmp_path / f"home{i}"
        ended = [finish(p) for p in [start(home, FAULT_PAUSE="0.03"), start(home, FAULT_PAUSE="0.03")]]
        assert sorted(code for code, _, _ in ended) == [0, 9], ended
