"""From a file to a plan, and the plans that it may be compared with."""

import json
from collections.abc import Sequence
from pathlib import Path

from flows import plan as plans
from flows.compile import compile
from flows.nodes import Plan, plan_from
from flows.resolve import resolve
from flows.state import State
from specs.errors import ProgramError, StateError, UsageError
from specs.loader import LoadedProgram, load_program


def prepare(
    file: Path, settings: Sequence[str], state: State, *, refresh: bool = False, rounds_only: bool = False
) -> tuple[LoadedProgram, Plan]:
    """Load, resolve and compile a program; nothing is written. ProgramError and StateError say what is wrong."""
    loaded = load_program(file, settings)
    found = resolve(loaded, state_view=state, refresh=refresh, rounds_only=rounds_only)
    return loaded, compile(loaded.program, found)


def last_plan(state: State, program: str) -> Plan | None:
    """Return the plan of a program's last run; None where there is none that this version can read."""
    record = state.last(program)
    stored = state.plan(record.plan) if record is not None else None
    return _read(stored)


def champion_plan(state: State, program: str) -> Plan:
    """Return the plan of the run that made the champion. StateError where there is none."""
    from flows.registry import champion

    version = champion(state.home, program)
    if version is None:
        raise UsageError(f"{program}: there is no champion yet; compare with `--diff last` or a file")
    path = state.program(program) / "executions" / f"{version.execution}.json"
    try:
        found = _read(state.plan(json.loads(path.read_bytes())["plan"]))
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found is None:
        raise StateError(
            f"{program}: the plan that made the champion (version {version.version}) is not kept; "
            "compare with `--diff last` or a file"
        )
    return found


def other_plan(name: str, plan: Plan, state: State) -> Plan:
    """Return the plan that `--diff` names: `last`, `champion`, a saved plan (.json) or a program file."""
    if name == "champion":
        return champion_plan(state, plan.program)
    if name == "last":
        found = last_plan(state, plan.program)
        if found is None:
            raise UsageError(f"{plan.program}: it was not run here yet; there is no last plan to compare with")
        return found
    path = Path(name)
    return plans.load(path) if path.suffix == ".json" else prepare(path, (), state)[1]


def _read(stored: dict[str, object] | None) -> Plan | None:
    try:
        return None if stored is None else plan_from(stored)
    except ProgramError:  # of another version: it explains nothing
        return None
