"""Programs of the user's own, looked at before a run: digests of their files, and the version they report of themselves."""

from collections.abc import Callable
from pathlib import Path

from flows.nodes import Json
from flows.resolution import environments_of, used_data
from specs.agents import ExternalAgent
from specs.command_references import own_programs
from specs.commands import Command
from specs.errors import ProgramError, TutelageError
from specs.positions import path_text
from specs.program import Program
from specs.verifiers import ProcessVerifier


def look(program: Program, folder: Path, where: Callable[[str], str]) -> dict[str, Json]:
    """Return what each program that is used was found to be, by its place. ProgramError where it does not answer."""
    used = {e for name in used_data(program) for e in environments_of(program, name)}
    read = {*program.reward.must, *program.reward.outcome, *program.reward.soft} or set(program.verifiers)
    wanted = {("environments", n) for n in used} | {("verifiers", n) for n in read} | {("agent",)}
    return {
        path_text(path): found(path_text(path), spec, folder, where)
        for path, spec in own_programs(program).items()
        if path in wanted
    }


def found(name: str, spec: Command, folder: Path, where: Callable[[str], str]) -> Json:
    """Return folder, file digests and reported version of one program, which is started to ask for the latter."""
    from tasks.linechild import LineChild
    from tasks.ownprogram import file_digests, launch_of

    more = (spec.cases,) if isinstance(spec, ProcessVerifier) and spec.cases is not None else ()
    result: Json = {"folder": str(folder), "files": file_digests(spec, folder, more), "reported": None}
    if isinstance(spec, ExternalAgent):
        return result
    resolved = spec.model_copy(update={"resolved": None})
    child = LineChild(launch_of(name, resolved, folder), name.partition(".")[0].removesuffix("s"))
    try:
        result["reported"] = child.hello()["version"]
    except TutelageError as e:
        raise ProgramError(f"{where(f'{name}.command')}: {e}") from e
    finally:
        child.close()
    return result
