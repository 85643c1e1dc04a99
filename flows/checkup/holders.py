"""Leases, the processes that they name, and servers: who lives, who is gone, what was left behind."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from flows import leftovers, services
from flows.checkup.findings import Finding, ok
from flows.leases import Lease, Process, process_from, short_lock


def leases(home: Path) -> Iterator[Finding]:
    """Find leases whose holder is gone, and children that outlived their driver."""
    held = 0
    for path in leftovers.lease_files(home):
        lease = Lease(path)
        if lease.held_elsewhere:
            held += 1
            continue
        left = lease.read()
        holder, child = process_from(left.get("holder")), process_from(left.get("child"))
        if child is not None and child.alive:
            yield Finding(
                "leases", "wrong", str(path), f"process {child.pid} of a dead run is still there ({left.get('node')})",
                "the next run of any program here ends it; it ends by itself where it watches its driver",
            )  # fmt: skip
        elif path.stat().st_size > 0:
            yield Finding(
                "leases", "note", str(path), f"left by {_told(holder)}, which is gone", "the next run clears it",
                partial(_clear, path),
            )  # fmt: skip
    yield ok("leases", str(home), f"{held} held by living processes")


def _told(holder: Process | None) -> str:
    return "a process" if holder is None else f"process {holder.pid} on {holder.host}, since {holder.since}"


def _clear(path: Path) -> bool:
    """Empty a lease, unless somebody holds it by now or its child lives."""
    lease = Lease(path)
    left = lease.read()
    child = process_from(left.get("child"))
    if (child is not None and child.alive) or not lease.try_acquire():
        return False
    lease.release()
    return True


def recorded_services(home: Path) -> Iterator[Finding]:
    """Find records of servers that are gone, or do not answer, or cannot be read."""
    for path in sorted((home / "services").glob("*.json")):
        found = services.read(home, path.stem)
        if found is None:
            yield Finding(
                "services", "wrong", str(path), "damaged record", f"end that server by hand, remove {path.name}"
            )
        elif found.process is None or not found.alive:
            yield Finding(
                "services", "note", str(path), f"{found.name} is recorded at {found.url}, but its process is gone",
                "the next run removes the record", partial(_forget, home, path),
            )  # fmt: skip
        elif found.name in services.PORTS and not services.answers(found.url, found.name, timeout=2.0):
            yield Finding(
                "services", "note", found.url, f"{found.name} (process {found.process.pid}) does not answer",
                f"it may be starting; else see {path.with_suffix('.log')} and run `tutelage down`",
            )  # fmt: skip
        else:
            yield ok("services", found.url, f"{found.name} runs (process {found.process.pid})")


def _forget(home: Path, path: Path) -> bool:
    with short_lock(home / "services" / "lock"):
        found = services.read(home, path.stem)
        if found is None or found.process is None or found.alive:
            return False
        services.forget(home, path.stem)
    return True
