"""Starting a program of the user's own: its files as they were resolved, a scrubbed environment, limits, and its end.

It runs in a session of its own behind `tasks.childguard`, which ends it with all that it started when this process
is gone. Where the guard itself was killed, what is left is found by a mark in its environment: by this process, and where
that is gone too, by the next start. What it may use is bounded; its files and network are this machine's, so it must be a
program that is trusted.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from specs.commands import Command, Limits
from specs.errors import ProgramError, StateError
from tasks.processes import PIPE, Child, end, end_marked, mark, spawn

GUARD = Path(__file__).with_name("childguard.py")
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables of this process that a program of the user's own gets; secrets are in none of them."""
_IGNORED = ("__pycache__", ".git")
_MB = 2**20
_END_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How a program is started."""

    name: str
    """Where the program file declares it, for example `environments.mine`."""
    command: tuple[str, ...]
    folder: Path
    seconds: float
    limits: Limits
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """File -> digest that it must have."""
    folders: tuple[str, ...] = ()
    """Folders that it consists of, which must hold the files that are listed in `files` and no others."""
    reported: str | None = None
    """Version that it must report; None where any will do."""


def launch_of(name: str, spec: Command, folder: Path | None = None) -> Launch:
    """Return how the program of a spec is started; from `folder`, else the working directory, where not resolved."""
    found = spec.resolved
    return Launch(
        name=name,
        command=tuple(spec.command),
        folder=Path(found.folder) if found is not None else folder or Path.cwd(),
        seconds=spec.timeout_seconds,
        limits=spec.limits,
        files=found.files if found is not None else {},
        folders=tuple(n for n in spec.files if n not in found.files) if found is not None else (),
        reported=found.reported if found is not None else None,
    )


def file_digests(spec: Command, folder: Path, more: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the digest of each file that a command names and of its `files`; ProgramError where one is not there."""
    named = [w for w in spec.command if "\0" not in w and (folder / w).is_file() and not _interpreter(w)]
    found: dict[str, str] = {}
    for name in dict.fromkeys([*named, *spec.files, *more]):
        path = folder / name
        if path.is_dir():
            found |= {inner: _digest(folder / inner) for inner in _listed(folder, name)}
        else:
            found[name] = _digest(path)
    return found


def _listed(folder: Path, name: str) -> list[str]:
    """Return the files of a declared folder, named as keys name them."""
    path = folder / name
    inner = [p for p in sorted(path.rglob("*")) if p.is_file() and not set(p.relative_to(path).parts) & set(_IGNORED)]
    return [f"{name.rstrip('/')}/{p.relative_to(path).as_posix()}" for p in inner]


def _interpreter(word: str) -> bool:
    """Say whether a word is a binary that PATH finds: what is installed, and no file of the user's."""
    path = Path(word)
    if not path.is_absolute() or str(path.parent) not in os.get_exec_path():
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(2) != b"#!"
    return False


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as e:
        raise ProgramError(f"{path}: cannot be read ({e.strerror}); expected a file of the program") from e


class Running:
    """A program that was started; `end` ends it with all that it started and removes its folder."""

    def __init__(self, child: Child, life: int, home: Path) -> None:
        self.child = child
        self.home = home
        self._end = weakref.finalize(self, _end, child, life, home)

    def end(self) -> int | None:
        """End it; return its status, which is that of a program that had ended by itself before."""
        self._end()
        return self.child.poll()


def _end(child: Child, life: int, home: Path) -> None:
    with contextlib.suppress(OSError):
        os.close(life)  # the guard ends the program and what it left
    until(lambda: child.poll() is not None, _END_SECONDS)
    end(child)
    if child.returncode is None or child.returncode < 0:  # the guard was killed before it had ended all of it
        end_marked(home.name)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    shutil.rmtree(home, ignore_errors=True)


def until(done: Callable[[], bool], seconds: float) -> bool:
    """Wait for something, for so long at most; return whether it came."""
    last = time.monotonic() + seconds
    while not done():
        if time.monotonic() > last:
            return False
        time.sleep(0.002)
    return True


def start(
    launch: Launch,
    variables: Mapping[str, str] | None = None,
    *,
    stdin: IO[Any] | int = PIPE,
    stdout: IO[Any] | int = PIPE,
    stderr: IO[Any] | int = PIPE,
) -> Running:
    """Start a program. StateError where its files are not those that were resolved, or nothing can be started."""
    check_files(launch)
    life, ours = os.pipe()
    home = Path(tempfile.mkdtemp(prefix="tutelage-"))
    command = [sys.executable, "-I", "-S", str(GUARD), str(life), _limits(launch.limits), str(home), *launch.command]
    try:
        child = spawn(
            command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=launch.folder,
            env=environment(home, variables or {}), pass_fds=(life,),
        )  # fmt: skip
    except OSError as e:
        os.close(ours)
        shutil.rmtree(home, ignore_errors=True)
        raise StateError(f"{launch.name}: cannot be started in {launch.folder} ({e.strerror}); check the folder") from e
    finally:
        os.close(life)
    return Running(child, ours, home)


def environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program: a few of this process, its own folder, what it is told, and its mark."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    own = {"HOME": str(home), "TMPDIR": str(home), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **own, **variables, **mark(home.name)}


def check_files(launch: Launch) -> None:
    """Raise StateError where a file of the program is not the one that was resolved, or is new in a folder of it."""
    for new in (n for name in launch.folders for n in _listed(launch.folder, name) if n not in launch.files):
        raise StateError(
            f"{launch.name}: {new} was added after the run was planned, so its results would be another program's; "
            "run the same command again, and have the program write elsewhere than into a folder of its `files`"
        )
    for name, digest in launch.files.items():
        path = launch.folder / name
        if not path.is_file() or _digest(path) != digest:
            raise StateError(
                f"{launch.name}: {name} is gone or was changed after the run was planned, so its results would be "
                "another program's; run the same command again"
            )


def _limits(limits: Limits) -> str:
    values = {
        "RLIMIT_DATA": limits.memory_mb * _MB,
        "RLIMIT_FSIZE": limits.file_mb * _MB,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
    }
    return ",".join(f"{name}={value}" for name, value in values.items())
