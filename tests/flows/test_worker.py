"""The worker of `tutelage up` works where a person here would: a named Prefect server, a named MLflow, their keys."""

import base64
import contextlib
import json
import os
import signal
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows import services, worker
from flows.cli import main
from flows.deployments import client, deployed, polled
from flows.leases import driver_lease
from specs.errors import ServiceError
from tests.flows import unattended
from tests.flows.unattended import Site

pytestmark = pytest.mark.services
ONE = 'schedule: {nightly: {cron: "0 3 * * *"}}\n'
KEY = "pnu_canary_of_prefect"
PASSWORD = "canary-of-mlflow"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A project with a server, and no worker yet."""
    with unattended.site(tmp_path_factory.mktemp("worker") / "project", ONE) as made:
        yield made


@contextmanager
def store(asked: list[str | None]) -> Iterator[str]:
    """Yield the address of an MLflow that lives, and says no to all that it is asked; notes who asked."""

    class Store(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            well = self.path == "/health"
            if not well:
                asked.append(self.headers.get("authorization"))
            self.send_response(200 if well else 403)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"OK")

        do_POST = do_GET

        def log_message(self, format: str, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def guarded(url: str) -> Iterator[str]:
    """Yield the address of a door that lets who has the key through to a Prefect server, and nobody else."""
    port = int(url.removesuffix("/api").rpartition(":")[2])

    class Door(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            head = b""
            while b"\r\n\r\n" not in head and (more := self.request.recv(65536)):
                head += more
            asked = head.lower()
            if f"authorization: bearer {KEY}".encode() not in asked and b"upgrade: websocket" not in asked:
                self.request.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", port)) as server:
                server.sendall(head)
                back = threading.Thread(target=_pour, args=(server, self.request), daemon=True)
                back.start()
                _pour(self.request, server)
                back.join()

    class Doors(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Doors(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _pour(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def kept(home: Path, text: str) -> list[Path]:
    """Return the files that hold a text."""
    found: list[Path] = []
    for path in home.rglob("*"):
        try:
            found += [path] if path.is_file() and text.encode() in path.read_bytes() else []
        except FileNotFoundError:  # a journal of a database, gone meanwhile
            continue
    return found


@pytest.mark.slow
def test_runs_of_a_named_server_have_a_worker_with_its_key(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded(site.url) as address:
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        monkeypatch.setenv("PREFECT_API_KEY", KEY)
        assert main(["schedule", str(site.file), "--apply"]) == 0
        said = capsys.readouterr().err
        assert f"no worker takes this project's runs from {address}/api: start one with `tutelage up`, or" in said
        assert f"PREFECT_API_URL={address}/api prefect worker start --pool tutelage" in said
        site.start_worker()
        with driver_lease(site.state.program("nightly") / "lease", "nightly"):
            name, message = site.ended(site.trigger())
        assert (name, message[:8]) == ("Skipped", "overlap:")
        assert main(["schedule", str(site.file)]) == 0
        assert "no worker" not in capsys.readouterr().err
        with client(site.home, f"{address}/api") as found:
            assert polled(found, site.home)
            assert not polled(found, site.home.parent / "other" / ".tutelage"), "another project's queue is not for it"
        assert worker.uses(site.home) == {"mlflow": services.own_tracking_uri(site.home), "prefect": f"{address}/api"}
        monkeypatch.delenv("PREFECT_API_URL")
        monkeypatch.delenv("PREFECT_API_KEY")
        with pytest.raises(ServiceError, match=f"uses Prefect at {address}/api .*names Prefect at {site.url} "):
            worker.start(site.home)
        assert main(["schedule", str(site.file)]) == 0
        site.stop_worker()
    assert kept(site.home, KEY) == []


@pytest.mark.slow
def test_a_scheduled_run_sends_its_metrics_where_a_persons_run_does(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str | None] = []
    with store(asked) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "team")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        assert main(["schedule", str(site.file), "--apply"]) == 0
        site.start_worker()
        for name in ("URI", "USERNAME", "PASSWORD"):
            monkeypatch.delenv(f"MLFLOW_TRACKING_{name}")
        run = site.trigger()
        unattended.wait(lambda: bool(asked), "the store to be asked", every=0.05)
        os.kill(site.driver(), signal.SIGTERM)
        assert site.ended(run)[0] in ("Interrupted", "Held")
        assert asked[0] == f"Basic {base64.b64encode(f'team:{PASSWORD}'.encode()).decode()}"
        capsys.readouterr()
        assert main(["status", "nightly", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["worker"] == {"prefect": site.url, "mlflow": address}
        assert main(["status", "nightly"]) == 0
        assert f"their metrics go to {address}" in capsys.readouterr().out
        with client(site.home, site.url) as found:
            shown: list[Any] = [found.read_flow_run(run), deployed(found, "nightly")]
        site.stop_worker()
    assert "canary" not in str(shown)
    assert kept(site.home, PASSWORD) == []


def test_up_starts_no_server_beside_one_that_the_environment_names(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "other" / ".tutelage"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    monkeypatch.setenv("PREFECT_API_URL", site.url)
    with store([]) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("://", "://team:url-canary@"))
        try:
            assert main(["up", "--json"]) == 0
            shown = json.loads(capsys.readouterr().out)
            assert shown["worker"] == {"prefect": site.url, "mlflow": address}
            assert (shown["prefect"], shown["mlflow"]) == (site.url, address)
            assert [s.name for s in services.records(home)] == ["worker"]
            record = services.read(home, "worker")
            assert record is not None
            assert record.process is not None
            given = Path(f"/proc/{record.process.pid}/environ").read_bytes().split(b"\0")
            assert f"MLFLOW_TRACKING_URI={os.environ['MLFLOW_TRACKING_URI']}".encode() in given
            assert main(["up"]) == 0
            assert f"mlflow   {address}, named by MLFLOW_TRACKING_URI and not started here" in capsys.readouterr().out
        finally:
            assert services.down(home) == ["worker: stopped"]
    assert kept(home, "url-canary") == []
