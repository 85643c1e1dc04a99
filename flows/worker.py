"""The worker of `tutelage up`: it runs what schedules ask for, on the servers and stores that a person here would use.

It polls the Prefect server that stays, and there only the queue of this project. Addresses and credentials reach it, and
what it starts, through the environment alone; its record names the addresses without user and password.
"""

import os
import shlex
import socket
from pathlib import Path

from flows import services
from flows.leases import short_lock
from flows.services import Service
from specs.errors import ServiceError
from specs.redaction import without_secrets

NAME = "worker"
PREFECT_ACCESS = (
    "PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_API_SSL_CERT_FILE",
    "PREFECT_API_TLS_INSECURE_SKIP_VERIFY", "PREFECT_CLIENT_CUSTOM_HEADERS",
)  # fmt: skip
"""Variables with which a client reaches a Prefect server of somebody else."""
_ALSO = ("MLFLOW_", "PREFECT_WORKER_")
"""What the names of further variables that it gets begin with; nothing else of Prefect's is for it."""


def start(home: Path) -> None:
    """Start the worker, and keep it until `tutelage down`; nothing where it runs already.

    ServiceError where Prefect does not answer, and where the worker that runs uses other servers than are asked for now.
    """
    from flows.deployments import client, needed_server, place

    url = needed_server(home)
    with client(home, url) as found:
        place(found, home)
    asked = _addresses(url)
    with short_lock(home / "services" / "lock"):
        running = services.read(home, NAME)
        if running is None or not running.alive:
            service = Service(NAME, without_secrets(url), 0, None, kept=True, uses=asked)
            services.launch(home, service, ("prefect", command(home)[1:], _settings(home, url)))
            return
        if running.uses != asked:
            raise ServiceError(
                f"the worker that runs here uses {_words(running.uses)}; the environment names {_words(asked)}: run "
                "`tutelage down`, then `tutelage up` again, or set PREFECT_API_URL and MLFLOW_TRACKING_URI as they were"
            )
        running.kept = True
        services.own(home, running, None)


def command(home: Path) -> list[str]:
    """Return the command that is a worker for this project, here or on another machine."""
    from flows.deployments import POOL, queue

    named = f"{NAME}-{socket.gethostname()}-{queue(home)}"
    return ["prefect", "worker", "start", "--pool", POOL, "--type", "process", "--work-queue", queue(home),
            "--name", named]  # fmt: skip


def advice(home: Path, url: str) -> str:
    """Return how to get a worker for a server, where none polls the queue of this project."""
    running = services.read(home, NAME)
    elsewhere = (
        f"on another machine that reads these files: PREFECT_API_URL={without_secrets(url)} {shlex.join(command(home))}"
    )
    if running is None or not running.alive:
        return f"start one with `tutelage up`, or {elsewhere}"
    if running.uses["prefect"] == without_secrets(url):
        return f"the one that `tutelage up` started is only just beginning, or cannot reach it; see {services.log(home, NAME)}"
    return (
        f"the one of `tutelage up` polls {running.uses['prefect']}: run `tutelage down`, then `tutelage up` in this "
        f"environment, or {elsewhere}"
    )


def uses(home: Path) -> dict[str, str] | None:
    """Return the addresses of Prefect and MLflow that the worker's runs use; None where no worker of `up` runs."""
    running = services.read(home, NAME)
    if running is None or not running.alive:
        return None
    return {"mlflow": services.own_tracking_uri(home), **running.uses}


def _addresses(url: str) -> dict[str, str]:
    """Return what the environment asks for; without MLflow where it names none."""
    named = os.environ.get("MLFLOW_TRACKING_URI")
    return {"prefect": without_secrets(url)} | ({"mlflow": without_secrets(named)} if named else {})


def _settings(home: Path, url: str) -> dict[str, str]:
    given = {k: v for k, v in os.environ.items() if k in PREFECT_ACCESS or k.startswith(_ALSO)}
    fixed = {"PREFECT_API_URL": url, "PREFECT_LOGGING_LEVEL": "WARNING"}
    return {**given, **services.quiet_environment(home), **fixed}


def _words(found: dict[str, str]) -> str:
    return f"Prefect at {found['prefect']} and {found.get('mlflow', 'the MLflow of this project')}"
