"""Clear what a dead run left behind: its processes, its half-written files, its servers. Done before every start."""

import importlib.util
from importlib import import_module
from pathlib import Path

from flows import leftovers
from flows.durable import remove_temporaries
from flows.leases import Lease, process_from
from flows.state import State, now
from tasks.processes import end, end_ownerless


def reconcile(state: State, program: str) -> list[str]:
    """Clear what dead drivers left and return sentences about it; what a living driver holds is not touched.

    Called with the program's driver lease held.
    """
    said = [s for path in sorted(state.home.glob("nodes/*/lease")) if (s := _node(state, path)) is not None]
    for folder in list(leftovers.folders(state.home)):
        remove_temporaries(folder)  # only what dead processes left, so that other programs may be at work
    for folder in list(leftovers.served(state.home)):
        leftovers.remove_served(folder)
    for folder in list(leftovers.evaluations(state.home)):
        leftovers.remove_evaluation(folder)
    if (left := end_ownerless()) > 0:
        said.append(f"processes that a program of a dead run had left were ended: {left}")
    said += _last_run(state, program)
    return said + _services(state)


def _node(state: State, path: Path) -> str | None:
    """Free a node whose driver died: end its process, drop half-written files, keep checkpoints."""
    if path.stat().st_size == 0:
        return None
    lease = Lease(path)
    left = lease.read()
    if not lease.try_acquire(**{k: v for k, v in left.items() if k != "holder"}):  # kept, should this be killed too
        return None
    try:
        child, driver = process_from(left.get("child")), process_from(left.get("holder"))
        if driver is not None and driver.alive:  # it drives the folder that this one is a copy of
            child = None
        ended = child is not None and child.alive
        if child is not None:
            end(child)
        for folder in list(leftovers.folders(path.parent)):
            remove_temporaries(folder, ours=True)  # under its lease: a pid in a name may be another's by now
        if (path.parent / "receipt.json").exists():
            state.drop_checkpoints(path.parent.name)
        return (
            f"{left.get('node', path.parent.name)}: process {child.pid} of a dead run ended"
            if ended and child
            else None
        )
    finally:
        lease.release()


def _last_run(state: State, program: str) -> list[str]:
    """Record that the last run crashed, where its driver died without a word."""
    record = state.last(program)
    if record is None or record.state != "crashed":
        return []
    record.ended, record.exit_code = now(), None
    record.arguments["crashed"] = True
    state.save_record(record)
    return [
        f"the last run ({record.execution}) ended without a word, killed or by a power cut; going on from its receipts"
    ]


def _services(state: State) -> list[str]:
    """End servers of dead runs, where this installation manages servers and any were started."""
    if not any(state.home.glob("services/*.json")) or importlib.util.find_spec("flows.services") is None:
        return []
    return list(import_module("flows.services").reconcile(state.home))
