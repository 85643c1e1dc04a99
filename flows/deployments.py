"""What a program declares under `schedule`, brought to Prefect: one deployment per program, a schedule per slug.

Prefect keeps schedules that code no longer declares, so that what is there is read first, compared slug by slug, and
created, changed or deleted. The flow is named by module path; a process work pool runs it, with a queue per project, so
that no worker takes what lies in the files of another.
"""

import os
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows import services
from flows.drive import code_version
from flows.mirror import SETTINGS, home_tag
from specs.errors import ServiceError
from specs.notify import Notify
from specs.schedule import Schedule
from tasks import boundary

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL = "tutelage"
ENTRYPOINT = "flows.scheduled.scheduled"
FLOW = "scheduled"
_POLLED = timedelta(seconds=60)
"""A queue that nobody looked at for this long has no worker."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one schedule."""

    slug: str
    do: Literal["create", "update", "delete", "keep"]
    fields: dict[str, tuple[Any, Any]] = field(default_factory=dict[str, "tuple[Any, Any]"])
    """Field -> (as it is, as it is declared); None where there is none."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """The deployment of a program as Prefect has it."""

    id: Any = None
    parameters: Json = field(default_factory=dict[str, Any])
    version: str | None = None
    entrypoint: str | None = None
    queue: str | None = None
    paused: bool = False
    """Whether somebody paused it in Prefect: nothing comes due, whatever its schedules say."""
    schedules: dict[str, tuple[Any, Json]] = field(default_factory=dict[str, "tuple[Any, Json]"])
    """Slug -> id and fields; one without a slug is called by its id."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The deployment of a program as it is declared."""

    program: str
    file: Path
    home: Path
    schedules: Mapping[str, Schedule]
    notify: Notify | None = None

    @property
    def parameters(self) -> Json:
        """Return the parameters of every run; who is told, for when the file cannot be read any more."""
        told = None if self.notify is None else self.notify.model_dump(mode="json")
        about = {"program": self.program, "file": str(self.file), "home": str(self.home)}
        return {**about, "code": code_name(), "notify": told}


def code_name() -> str:
    """Return version and commit of this code, as deployments record it."""
    found = code_version()
    return " ".join(filter(None, [found["version"], found["commit"]])) or "unknown"


def queue(home: Path) -> str:
    """Return the name of the queue for the runs of a project."""
    return home_tag(home)


def server(home: Path) -> str | None:
    """Return the address of the Prefect server that stays: PREFECT_API_URL, or that of `tutelage up`; None if absent.

    ServiceError where PREFECT_API_URL names one that does not answer.
    """
    if os.environ.get("PREFECT_API_URL"):
        return services.prefect(home).url
    found = services.read(home, "prefect")
    kept = found is not None and found.kept and found.alive and services.answers(found.url, "prefect", timeout=3.0)
    return found.url if found is not None and kept else None


def needed_server(home: Path) -> str:
    """Return the address of the server that stays. ServiceError where there is none."""
    url = server(home)
    if url is None:
        raise ServiceError(
            f"no Prefect server stays for {home}: schedules need one, and a worker; start both with `tutelage up`, "
            "or name a server with PREFECT_API_URL"
        )
    return url


def settings(home: Path, url: str) -> dict[str, str]:
    """Return the environment in which this process may use Prefect's client."""
    return {**services.quiet_environment(home), **SETTINGS, "PREFECT_API_URL": url}


@contextmanager
def client(home: Path, url: str) -> "Iterator[Any]":
    """Yield a client of the server. ServiceError where it does not answer."""
    kept, asked = dict(os.environ), settings(home, url)
    os.environ.update(asked)  # read as Prefect is imported
    try:
        from prefect.client.orchestration import get_client
        from prefect.settings import (
            PREFECT_API_REQUEST_TIMEOUT,
            PREFECT_API_URL,
            PREFECT_CLIENT_MAX_RETRIES,
            temporary_settings,
        )

        patient: Any = {PREFECT_API_URL: url, PREFECT_API_REQUEST_TIMEOUT: 30.0, PREFECT_CLIENT_MAX_RETRIES: 6}
        refused = boundary.foreign(f"the Prefect server at {url} refused")
        with temporary_settings(patient), refused, get_client(sync_client=True) as found:
            yield found
    finally:
        for name in asked:
            os.environ.pop(name, None)
        os.environ.update({k: kept[k] for k in asked if k in kept})


# --- reading and comparing


def deployed(found: Any, program: str) -> Deployed:
    """Return what Prefect has of a program."""
    from prefect.exceptions import ObjectNotFound

    try:
        there = found.read_deployment_by_name(f"{FLOW}/{program}")
    except ObjectNotFound:
        return Deployed()
    schedules = {(s.slug or str(s.id)): (s.id, _fields_of(s)) for s in found.read_deployment_schedules(there.id)}
    return Deployed(
        there.id,
        dict(there.parameters),
        there.version,
        there.entrypoint,
        there.work_queue_name,
        there.paused,
        schedules,
    )


def _fields_of(schedule: Any) -> Json:
    what = schedule.schedule
    own = schedule.parameters or {}
    return {
        "cron": getattr(what, "cron", None) or type(what).__name__,
        "timezone": getattr(what, "timezone", None),
        "overlap": own.get("overlap"),
        "catchup": own.get("catchup"),
        "rounds_only": own.get("rounds_only"),
        "active": bool(schedule.active),
    }


def fields_of(spec: Schedule) -> Json:
    """Return a declared schedule as it is compared."""
    return {
        "cron": spec.cron,
        "timezone": spec.timezone,
        "overlap": spec.overlap,
        "catchup": spec.catchup,
        "rounds_only": spec.rounds_only,
        "active": spec.active,
    }


def compare(wanted: Mapping[str, Schedule], there: Deployed) -> list[Change]:
    """Return what has to be done, by slug: what is declared first, then what no longer is."""
    changes: list[Change] = []
    for slug, spec in wanted.items():
        new = fields_of(spec)
        if slug not in there.schedules:
            changes.append(Change(slug, "create", {k: (None, v) for k, v in new.items()}))
            continue
        old = there.schedules[slug][1]
        differs = {k: (old.get(k), v) for k, v in new.items() if old.get(k) != v}
        changes.append(Change(slug, "update" if differs else "keep", differs))
    for slug, (_, old) in there.schedules.items():
        if slug not in wanted:
            changes.append(Change(slug, "delete", {k: (v, None) for k, v in old.items()}))
    return changes


def moved(wanted: Wanted, there: Deployed) -> dict[str, tuple[Any, Any]]:
    """Return what differs of the deployment itself: file, code version, hooks, entry point, queue, whether it is paused."""
    if there.id is None:
        return {}
    new: Json = {**wanted.parameters, "entrypoint": ENTRYPOINT, "queue": queue(wanted.home), "paused": False}
    old: Json = {**there.parameters, "entrypoint": there.entrypoint, "queue": there.queue, "paused": there.paused}
    return {k: (old.get(k), v) for k, v in new.items() if old.get(k) != v}


def foreign(wanted: Wanted, there: Deployed) -> None:
    """Raise ServiceError where the deployment of this name belongs to another project on the same server."""
    home = there.parameters.get("home")
    if there.id is not None and home != str(wanted.home):
        raise ServiceError(
            f"{wanted.program}: the server has a deployment of this name that belongs to {home}; rename this program, "
            f"or remove that one with `TUTELAGE_HOME={home} tutelage schedule {wanted.program} --remove`"
        )


# --- writing


def apply(found: Any, wanted: Wanted, there: Deployed) -> None:
    """Make Prefect's deployment what is declared; without any schedule there is no deployment."""
    if not wanted.schedules:
        remove(found, there)
        return
    place(found, wanted.home)
    deployment = _deployment(found, wanted, there)
    for change in compare(wanted.schedules, there):
        if change.do == "delete":
            found.delete_deployment_schedule(deployment, there.schedules[change.slug][0])
        elif change.do == "create":
            found.create_deployment_schedules(deployment, [_created(change.slug, wanted.schedules[change.slug])])
        elif change.do == "update":
            spec = wanted.schedules[change.slug]
            new = _created(change.slug, spec)
            found.update_deployment_schedule(
                deployment, there.schedules[change.slug][0],
                active=spec.active, schedule=new.schedule, parameters=new.parameters, slug=change.slug,
            )  # fmt: skip


def remove(found: Any, there: Deployed) -> None:
    """Delete a deployment with its schedules and the runs that they planned; runs that were, stay."""
    if there.id is not None:
        for schedule, _ in there.schedules.values():
            found.delete_deployment_schedule(there.id, schedule)
        found.delete_deployment(there.id)


def place(found: Any, home: Path) -> None:
    """Make the work pool and this project's queue in it, where they are missing. ServiceError for a pool of another type."""
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    _pool(found)
    try:
        found.read_work_queue_by_name(queue(home), work_pool_name=POOL)
    except ObjectNotFound:
        with suppress(ObjectAlreadyExists):
            found.create_work_queue(queue(home), work_pool_name=POOL)


def _pool(found: Any) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
    from prefect.workers.process import ProcessWorker

    try:
        pool = found.read_work_pool(POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        with suppress(ObjectAlreadyExists):  # a worker that starts just now made it
            found.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        return
    if pool.type != "process":
        raise ServiceError(
            f"the work pool {POOL} is of type {pool.type}, expected process; remove or rename it in Prefect"
        )


def _deployment(found: Any, wanted: Wanted, there: Deployed) -> Any:
    """Create or update the deployment and return its id; creating it again would drop its schedules."""
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.deployments.runner import EntrypointType

    from flows.scheduled import scheduled

    flow: Any = scheduled
    made = flow.to_deployment(wanted.program, entrypoint_type=EntrypointType.MODULE_PATH)
    assert made.entrypoint == ENTRYPOINT, "a path would load a second copy of the package"
    fields: Json = {
        "version": code_name(),
        "parameters": wanted.parameters,
        "description": f"Runs {wanted.file} by itself; made by `tutelage schedule`",
        "work_pool_name": POOL,
        "work_queue_name": queue(wanted.home),
        "tags": ["tutelage", wanted.program],
        "entrypoint": ENTRYPOINT,
        "parameter_openapi_schema": made._parameter_openapi_schema.model_dump(mode="json"),
        "enforce_parameter_schema": True,
        "job_variables": {"working_dir": str(wanted.file.parent)},
        "paused": False,
    }
    if there.id is None:
        return found.create_deployment(found.create_flow_from_name(FLOW), wanted.program, **fields)
    found.update_deployment(there.id, DeploymentUpdate(**fields))
    return there.id


def _created(slug: str, spec: Schedule) -> Any:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    own = {"schedule": slug} | {k: v for k, v in fields_of(spec).items() if k in ("overlap", "catchup", "rounds_only")}
    when = CronSchedule(cron=spec.cron, timezone=spec.timezone)
    return DeploymentScheduleCreate(schedule=when, active=spec.active, parameters=own, slug=slug)


def polled(found: Any, home: Path) -> bool:
    """Return whether a worker looks for runs of this project now."""
    from prefect.exceptions import ObjectNotFound

    try:
        there = found.read_work_queue_by_name(queue(home), work_pool_name=POOL)
    except ObjectNotFound:
        return False
    return there.last_polled is not None and datetime.now(UTC) - there.last_polled < _POLLED


def paused(found: Any, home: Path) -> list[str]:
    """Return the commands that let runs start again, where somebody paused the work pool or this project's queue."""
    from prefect.exceptions import ObjectNotFound

    try:
        pool, own = found.read_work_pool(POOL), found.read_work_queue_by_name(queue(home), work_pool_name=POOL)
    except ObjectNotFound:
        return []
    every = [(pool.is_paused, f"prefect work-pool resume {POOL}")]
    return [c for off, c in [*every, (own.is_paused, f"prefect work-queue resume {queue(home)} --pool {POOL}")] if off]
