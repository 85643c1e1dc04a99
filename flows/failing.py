"""Tells a program's hooks that a scheduled run failed before it was driven: what a driver tells, it tells itself."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from flows.hooks import Hooks, Subject
from flows.state import State
from specs.errors import ProgramError, TutelageError
from specs.loader import load_program
from specs.notify import Notify


def tell_failed(
    run: Subject, state: State, recorded: dict[str, Any] | None, ended: Any, *, environ: Mapping[str, str]
) -> list[str]:
    """Tell hooks that a run `ended` in a Prefect state of failure; return sentences about hooks that failed.

    They are those of the program file, and those that its deployment recorded where that cannot be read any more.
    """
    try:
        spec = _hooks(run.file, recorded)
    except ProgramError as e:
        return [f"notify run_failed: {e}"]
    if spec is None:
        return []
    hooks = Hooks(spec, run, state, environ)
    todo = f"tutelage schedule {run.file} --apply" if ended.name == "Refused" else f"tutelage plan {run.file}"
    hooks.tell(["run_failed"], reason=ended.message or "", exit_code=None, todo=todo)
    return hooks.finish()


def _hooks(file: str, recorded: dict[str, Any] | None) -> Notify | None:
    try:
        return load_program(file).program.notify
    except (TutelageError, OSError):  # perhaps the very reason for which the run failed
        if recorded is None:
            return None
    try:
        return Notify.model_validate(recorded)
    except ValidationError as e:
        raise ProgramError(
            f"{file}: it cannot be read, and what its deployment recorded is not understood ({e.error_count()} errors); "
            "apply it again with `tutelage schedule FILE --apply`"
        ) from e
