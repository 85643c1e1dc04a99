"""Checks of programs of the user's own: the files they name are there, and settings that they cannot honour."""

from pathlib import Path

from specs.checks import Checks
from specs.commands import Command, Limits
from specs.positions import KeyPath
from specs.program import Program
from specs.verifiers import ProcessVerifier


def own_programs(program: Program) -> dict[KeyPath, Command]:
    """Return the programs of the user's own by their place in the program file."""
    found: dict[KeyPath, Command] = {}
    for name, environment in program.environments.items():
        if isinstance(environment, Command):
            found["environments", name] = environment
    for name, verifier in program.verifiers.items():
        if isinstance(verifier, Command):
            found["verifiers", name] = verifier
    if isinstance(program.agent, Command):
        found["agent",] = program.agent
    return found


def commands(c: Checks) -> None:
    """Report commands whose files are missing, or that hold what tutelage fills in."""
    for path, spec in own_programs(c.program).items():
        if spec.resolved is not None:
            c.wrong((*path, "resolved"), "is filled in by tutelage; remove it")
        for i, name in enumerate(spec.files):
            if not exists(c.folder, name):
                c.wrong((*path, "files", i), f"no such file or folder: {name} (looked in {c.folder})")
        if isinstance(spec, ProcessVerifier) and spec.cases is not None and not is_file(c.folder, spec.cases):
            c.wrong((*path, "cases"), f"no such file: {spec.cases} (looked in {c.folder}); expected self-test cases")
        _command(c, path, spec)
        for name in ("line_kb", "restarts") if path == ("agent",) else ():
            if getattr(spec.limits, name) != Limits.model_fields[name].default:
                c.wrong((*path, "limits", name), "is not read for an agent, which is started once per episode")


def _command(c: Checks, path: KeyPath, spec: Command) -> None:
    first = spec.command[0]
    if "/" in first and not is_file(c.folder, first):
        c.wrong((*path, "command", 0), f"no such program: {first} (looked in {c.folder})")
    for i, word in enumerate(spec.command[1:], 1):
        if looks_like_file(word) and not exists(c.folder, word):
            c.wrong(
                (*path, "command", i), f"no such file: {word} (looked in {c.folder}); expected a file of the program"
            )


def looks_like_file(word: str) -> bool:
    """Say whether an argument is meant to be a script beside the program file."""
    plain = not word.startswith("-") and not any(ch in word for ch in " \n\t=;|&$")
    return plain and Path(word).suffix in (".py", ".sh", ".js", ".mjs", ".ts", ".rb", ".pl", ".lua", ".jar", ".r", ".R")


def exists(folder: Path, name: str) -> bool:
    """Say whether a file or folder is there."""
    return "\0" not in name and (folder / name).exists()


def is_file(folder: Path, name: str) -> bool:
    """Say whether a file is there."""
    return "\0" not in name and (folder / name).is_file()
