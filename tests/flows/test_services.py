"""Servers as leased processes: shared, ended with their last owner, never left behind. The server here is a toy."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import services
from flows.cli import main
from flows.leases import this_process
from specs.errors import ServiceError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose Prefect server is the toy."""

    def toy(home: Path, port: int) -> tuple[str, list[str], dict[str, str]]:
        return "tests.flows.toy_server", [str(port)], {"PYTHONPATH": str(ROOT)}

    monkeypatch.setitem(services._COMMANDS, "prefect", toy)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path / ".tutelage"


def wait_until(what: Callable[[], Any], seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


def test_a_server_lives_as_long_as_its_owners(home: Path) -> None:
    before = time.monotonic()
    use = services.prefect(home)
    assert time.monotonic() - before < 2.0  # it starts in the background
    use.wait_ready(20)
    assert services.prefect(home).url == use.url  # shared, not started twice
    record = services.read(home, "prefect")
    assert record is not None
    assert record.alive
    assert record.url.startswith("http://127.0.0.1:")
    use.release()
    assert not record.alive
    assert services.read(home, "prefect") is None


def test_a_killed_driver_leaves_no_server_behind(home: Path) -> None:
    use = services.prefect(home)
    use.wait_ready(20)
    record = services.read(home, "prefect")
    assert record is not None
    assert record.process is not None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    owner = this_process(gone.pid).to_dict()
    gone.wait()
    path = home / "services" / "prefect.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "owners": [owner]}))
    wait_until(lambda: not record.alive)  # its keeper ends it
    assert services.reconcile(home) == ["prefect: its server is gone, record removed"]
    assert services.reconcile(home) == []


def test_reconcile_ends_what_dead_runs_own_and_leaves_reused_pids_alone(home: Path) -> None:
    use = services.prefect(home)
    use.wait_ready(20)
    path = home / "services" / "prefect.json"
    whole = json.loads(path.read_text())
    assert services.reconcile(home) == []  # its owner lives
    path.write_text(json.dumps({**whole, "owners": []}))
    assert "of a dead run stopped" in services.reconcile(home)[0]
    path.write_text(json.dumps({**whole, "process": {**this_process().to_dict(), "start": "1"}, "owners": []}))
    assert "its server is gone" in services.reconcile(home)[0]  # our own pid, of another start: not touched


def test_up_keeps_a_server_and_down_ends_exactly_that(home: Path) -> None:
    kept = services.start(home, "prefect", keep=True)
    kept.wait_ready(20)
    use = services.prefect(home)
    assert use.url == kept.url
    use.release()
    assert services.answers(kept.url, "prefect", timeout=1.0)
    with pytest.raises(ServiceError, match="runs already at"):
        services.start(home, "prefect", port=1)
    assert services.down(home) == ["prefect: stopped"]
    assert services.down(home) == []
    assert not services.answers(kept.url, "prefect", timeout=0.3)


def test_a_server_that_ends_while_it_starts_is_told_with_its_log(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = ("tests.flows.toy_server", ["fail"], {"PYTHONPATH": str(ROOT)})
    monkeypatch.setitem(services._COMMANDS, "prefect", lambda home, port: failing)
    use = services.prefect(home)
    with pytest.raises(ServiceError, match=r"ended while it started; its log .* ends: no such database"):
        use.wait_ready(20)
    use.release()


def test_a_port_in_use_is_named_with_the_way_out(home: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(ServiceError, match=f"port {port} for prefect: another process has it .*--prefect-port"):
            services.start(home, "prefect", port=port)
    use = services.prefect(home)
    use.wait_ready(20)
    other = home.parent / "elsewhere"
    port = int(use.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(ServiceError, match=f"a prefect server that tutelage did not start .*PREFECT_API_URL={use.url}"):
        services.start(other, "prefect", port=port)
    use.release()


def test_a_named_server_is_used_and_must_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = services.prefect(home)
    use.wait_ready(20)
    monkeypatch.setenv("PREFECT_API_URL", use.url)
    named = services.prefect(home.parent / "elsewhere")
    assert (named.url, named.ours) == (use.url, False)
    named.release()
    assert services.answers(use.url, "prefect", timeout=1.0)
    use.release()
    with pytest.raises(ServiceError, match=r"PREFECT_API_URL: no Prefect server answers .*unset the variable"):
        services.prefect(home)


def test_down_without_anything_to_stop(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    assert main(["down"]) == 0
    assert "nothing" in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_a_damaged_record_is_no_server(home: Path) -> None:
    (home / "services").mkdir(parents=True)
    (home / "services" / "prefect.json").write_text("{")
    assert services.read(home, "prefect") is None
    use = services.prefect(home)
    use.wait_ready(20)
    found = services.read(home, "prefect")
    assert found is not None
    assert found.process is not None
    os.killpg(found.process.pid, signal.SIGKILL)
    wait_until(lambda: not found.alive)
    use.release()
