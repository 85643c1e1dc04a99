"""Prefect, MLflow and model servers as leased processes on loopback: shared by whoever uses them, ended when the last owner is gone.

Each has a record `.tutelage/services/<name>.json`: process, port, url, owners, and whether `tutelage up` keeps it.
The record is the lease; `flows.keeper` runs the server and ends it when no owner lives, so a killed driver leaves
none behind. Servers listen on 127.0.0.1 only, without passwords. How a model server is used is in
`flows.model_servers`.
"""

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path

from flows.durable import move, remove_dir, write_json
from flows.keeper import owned
from flows.leases import Process, process_from, short_lock, this_process
from specs.errors import ServiceError
from specs.redaction import without_secrets
from tasks.processes import end, spawn

HOST = "127.0.0.1"
PORTS = {"prefect": 4200, "mlflow": 5000}
"""Ports of `tutelage up` where none is named; a run's own server takes any free one."""
MODEL = "model-"
"""How the names of model servers begin; each serves one architecture, with the weights that it was given last."""
START_SECONDS = 120.0
_STOP_SECONDS = 8.0


Command = tuple[str, list[str], dict[str, str]]
"""Module that is the server, its arguments, and its settings in the environment."""
_KEEPER_ELSEWHERE = (
    f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); from flows.keeper import main; main()"
)
"""The keeper in a Python that has other packages: it and what it imports need none."""


@dataclass(slots=True)
class Service:
    """The record of one server. `process` is None for the moment between its record and its start."""

    name: str
    url: str
    port: int
    process: Process | None
    owners: list[Process] = field(default_factory=list[Process])
    kept: bool = False
    """`tutelage up` keeps it until `tutelage down`."""
    uses: dict[str, str] = field(default_factory=dict[str, str])
    """Kind -> address, without secrets, of other servers that it was told to use."""

    @property
    def alive(self) -> bool:
        """Return whether exactly this server still runs."""
        return self.process is not None and self.process.alive


@dataclass(frozen=True, slots=True)
class Use:
    """A server in use by this process. `release` gives it up; the last owner ends it."""

    home: Path
    name: str
    url: str
    ours: bool
    """False for a server that somebody else runs (PREFECT_API_URL, MLFLOW_TRACKING_URI)."""

    def wait_ready(self, timeout: float = START_SECONDS, *, stop: Callable[[], bool] | None = None) -> None:
        """Wait until it answers. ServiceError where it ended, or does not answer in `timeout` seconds."""
        until = time.monotonic() + timeout
        while not answers(self.url, self.name, timeout=1.0):
            if self.ours and not ((found := read(self.home, self.name)) and (found.process is None or found.alive)):
                raise ServiceError(f"{self.name} ended while it started; {_log_tail(self.home, self.name)}")
            if time.monotonic() > until or (stop is not None and stop()):
                raise ServiceError(
                    f"{self.name}: no answer at {self.url} within {timeout:.0f} s; {_log_tail(self.home, self.name)}"
                )
            time.sleep(0.1)

    def release(self) -> None:
        """Give the server up, and end it if nobody else uses or keeps it."""
        if not self.ours:
            return
        me = this_process()
        with short_lock(self.home / "services" / "lock"):
            found = read(self.home, self.name)
            if found is None:
                return
            found.owners = [o for o in found.owners if o.alive and o.pid != me.pid]
            _save(self.home, found)
            if not found.kept and not found.owners:
                _end(self.home, found)


# --- what others call


def prefect(home: Path) -> Use:
    """Return the Prefect server to use, at once; it may still be starting (`wait_ready`).

    The one that PREFECT_API_URL names, else the one running here, else a new one that lives as long as its owners.
    ServiceError where PREFECT_API_URL names a server that does not answer.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        if not answers(url, "prefect", timeout=3.0):
            raise ServiceError(
                f"PREFECT_API_URL: no Prefect server answers at {url!r}; start that server, "
                "or unset the variable: tutelage then starts one of its own on loopback"
            )
        return Use(home, "prefect", url, ours=False)
    return start(home, "prefect")


def tracking_uri(home: Path) -> str:
    """Return where metrics go: MLFLOW_TRACKING_URI, else the project's own."""
    return os.environ.get("MLFLOW_TRACKING_URI") or own_tracking_uri(home)


def own_tracking_uri(home: Path) -> str:
    """Return the address of the MLflow of `tutelage up`, else of a SQLite file of this project."""
    found = read(home, "mlflow")
    if found is not None and found.alive and answers(found.url, "mlflow", timeout=2.0):
        return found.url
    return f"sqlite:///{mlflow_database(home)}"


def mlflow_database(home: Path) -> Path:
    """Return the project's own MLflow database."""
    return home / "mlflow" / "mlflow.db"


def start(home: Path, name: str, *, port: int | None = None, keep: bool = False) -> Use:
    """Return the named server for this process, started in the background where it does not run yet.

    ServiceError where `port` is taken.
    """
    with short_lock(home / "services" / "lock"):
        found = read(home, name)
        if found is None or not found.alive:
            found = _launch(home, name, port if port is not None else free_port(), keep=keep)
        elif port is not None and found.port != port:
            raise ServiceError(
                f"{name} runs already at {found.url}, asked for port {port}; run `tutelage down` first, or leave it out"
            )
        else:
            found.kept = found.kept or keep
            own(home, found, None if keep else this_process())
    return Use(home, name, found.url, ours=True)


def own(home: Path, found: Service, owner: Process | None) -> None:
    """Make a process one of the owners of a server that runs. The caller holds the services' lock."""
    found.owners = [o for o in found.owners if o.alive]
    if owner is not None and all(o.pid != owner.pid for o in found.owners):
        found.owners.append(owner)
    _save(home, found)


def end_model(home: Path, name: str) -> None:
    """End a model server, or what is left of it, whoever owns it, and keep its log as `<name>.died.log`.

    The caller holds the services' lock.
    """
    if (found := read(home, name)) is not None and found.process is not None:
        end(found.process, grace=_STOP_SECONDS)
    if (said := log(home, name)).is_file():
        move(said, said.with_name(f"{name}.died.log"))


def release_models(home: Path) -> None:
    """Give up every model server that this process owns; those without another owner are ended, in bounded time."""
    for name in [s.name for s in records(home) if s.name.startswith(MODEL)]:
        Use(home, name, "", ours=True).release()


def down(home: Path, names: Collection[str] | None = None) -> list[str]:
    """End what `up` keeps (of `names`, where given) and nothing else; return sentences about what was done."""
    said: list[str] = []
    with short_lock(home / "services" / "lock"):
        for found in reversed(list(records(home))):
            if not found.kept or (names is not None and found.name not in names):
                continue
            found.kept = False
            found.owners = [o for o in found.owners if o.alive]
            _save(home, found)
            if found.owners:
                said.append(f"{found.name}: still used by process {found.owners[0].pid}, ends with it")
            else:
                was = found.alive
                _end(home, found)
                said.append(f"{found.name}: stopped" if was else f"{found.name}: was not running any more")
    return said


def reconcile(home: Path) -> list[str]:
    """Remove the records of dead servers and end servers whose owners are all dead; return sentences about it."""
    said: list[str] = []
    with short_lock(home / "services" / "lock"):
        for found in list(records(home)):
            if not found.alive:
                forget(home, found.name)
                said.append(f"{found.name}: its server is gone, record removed")
            elif owned(_record(home, found.name)) is False:
                _end(home, found)
                said.append(f"{found.name}: server {found.url} of a dead run stopped")
    return said


def records(home: Path) -> Iterator[Service]:
    """Yield every record that can be read."""
    for path in sorted((home / "services").glob("*.json")):
        if (found := read(home, path.stem)) is not None:
            yield found


def read(home: Path, name: str) -> Service | None:
    """Return a server's record; None where there is none or it is damaged."""
    try:
        data = json.loads(_record(home, name).read_text(encoding="utf-8"))
        owners = [p for o in data.pop("owners") if (p := process_from(o)) is not None]
        return Service(**{**data, "process": process_from(data["process"]), "owners": owners})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def answers(url: str, name: str, *, timeout: float) -> bool:
    """Return whether the named kind of server answers at `url`."""
    direct = [urllib.request.ProxyHandler({})] if "://127.0.0.1" in url or "://localhost" in url else []
    try:
        request = urllib.request.Request(f"{without_secrets(url).rstrip('/')}/health")  # ValueError: no address
        if name == "prefect" and (key := os.environ.get("PREFECT_API_KEY")):
            request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.build_opener(*direct).open(request, timeout=timeout) as reply:
            body = reply.read(64).strip()
    except (OSError, ValueError, HTTPException):
        return False
    return name.startswith(MODEL) or body == (b"true" if name == "prefect" else b"OK")


def quiet_environment(home: Path) -> dict[str, str]:
    """Return settings for Prefect, MLflow and DVC: nothing phones home, nothing is kept outside the project."""
    no_proxy = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"]))
    return {
        "DO_NOT_TRACK": "1",
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(home / "prefect"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "DVC_NO_ANALYTICS": "true",
    }


# --- processes and records


def _record(home: Path, name: str) -> Path:
    return home / "services" / f"{name}.json"


def log(home: Path, name: str) -> Path:
    """Return where a server's output goes."""
    return home / "services" / f"{name}.log"


def _save(home: Path, service: Service) -> None:
    write_json(_record(home, service.name), asdict(service))


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        return int(s.getsockname()[1])


def check_port(name: str, port: int) -> None:
    """Raise ServiceError, naming who has it, where a port is taken."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
            return
        except OSError as e:
            reason = e.strerror
    url = _url(name, port)
    found = f"a {name} server that tutelage did not start" if answers(url, name, timeout=1.0) else "another process"
    use = {
        "prefect": f"set PREFECT_API_URL={url} to use that server",
        "mlflow": f"set MLFLOW_TRACKING_URI={url} to use that server",
    }
    hint = f", or {use[name]}" if found.startswith("a ") else ""
    raise ServiceError(
        f"port {port} for {name}: {found} has it ({reason}); stop it, choose another with `--{name}-port`{hint}"
    )


def _url(name: str, port: int) -> str:
    return f"http://{HOST}:{port}" + ("/api" if name == "prefect" else "")


def _launch(home: Path, name: str, port: int, *, keep: bool) -> Service:
    check_port(name, port)
    service = Service(name, _url(name, port), port, None, [] if keep else [this_process()], keep)
    launch(home, service, _COMMANDS[name](home, port))
    return service


def launch(
    home: Path, service: Service, command: Command, *, python: str | None = None, given: Mapping[str, str] = os.environ
) -> None:
    """Start a server, in another Python where one is named, and save its record. The caller holds the services' lock.

    Its environment is what it is `given`, and the settings of tutelage.
    """
    name, (module, arguments, settings) = service.name, command
    (home / name).mkdir(parents=True, exist_ok=True)
    _save(home, service)
    environment = {k: v for k, v in given.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    keeper = [sys.executable, "-m", "flows.keeper"] if python is None else [python, "-c", _KEEPER_ELSEWHERE]
    keeping = [*keeper, str(_record(home, name)), module, *arguments]
    with log(home, name).open("wb") as said:
        child = spawn(
            keeping,
            stdout=said,
            stderr=said,
            cwd=home / name,
            env={**environment, **quiet_environment(home), **settings},
        )
    service.process = this_process(child.pid)
    _save(home, service)


def _end(home: Path, service: Service) -> None:
    """End a server by its pid, if it is still this very process, with all that it started; remove its record."""
    if service.process is not None:
        end(service.process, grace=_STOP_SECONDS)
    forget(home, service.name)


def forget(home: Path, name: str) -> None:
    """Remove the record of a server that is gone, and the weights that only it read."""
    _record(home, name).unlink(missing_ok=True)
    if name.startswith(MODEL):
        remove_dir(home / name)


def _log_tail(home: Path, name: str, lines: int = 3) -> str:
    path = log(home, name)
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-lines:]
    except OSError:
        text = []
    return f"its log {path} ends: " + (" | ".join(t.strip() for t in text) or "(empty)")


def _prefect_command(home: Path, port: int) -> tuple[str, list[str], dict[str, str]]:
    database = home / "prefect" / "prefect.db"
    return (
        "prefect",
        ["server", "start", "--host", HOST, "--port", str(port)],
        {
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "prefect" / "ui"),
            "PREFECT_LOGGING_LEVEL": "WARNING",
        },
    )


def _mlflow_command(home: Path, port: int) -> tuple[str, list[str], dict[str, str]]:
    store = f"sqlite:///{mlflow_database(home)}"
    artifacts = (home / "mlflow" / "artifacts").as_uri()
    return (
        "mlflow",
        [
            *("server", "--host", HOST, "--port", str(port), "--workers", "1", "--no-serve-artifacts"),
            *("--backend-store-uri", store, "--default-artifact-root", artifacts),
        ],
        {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )


_COMMANDS: dict[str, Callable[[Path, int], Command]] = {
    "prefect": _prefect_command,
    "mlflow": _mlflow_command,
}
