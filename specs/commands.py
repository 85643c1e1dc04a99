"""A program of the user's own: the command that starts it, the files it consists of, and what it may use."""

from typing import Annotated

from pydantic import Field

from specs.base import Count, Positive, Spec


class Limits(Spec):
    """What a program may use, and how often it may be started again."""

    memory_mb: Count = 4096
    """Memory that one of its processes may write to."""
    file_mb: Count = 1024
    """Size of the largest file that it may write."""
    open_files: Annotated[int, Field(ge=16)] = 256
    line_kb: Count = 16384
    """Length of its longest reply."""
    output_mb: Count = 4096
    """What it may write to stdout and stderr in all, until it is started again."""
    restarts: Annotated[int, Field(ge=0)] = 3
    """How often it is started again after it ended, hung or said what was not asked."""


class ResolvedCommand(Spec):
    """What the command was when the program was resolved; filled in by tutelage, never written by people."""

    folder: str
    """Folder of the program file, where the command runs; no part of any key."""
    files: dict[str, str] = {}
    """File as it is named -> sha256 of what it held."""
    reported: str | None = None
    """Version that the program reports of itself; None for agents, which report none."""


class Command(Spec):
    """How a program of the user's own is started. Relative names start in the folder of the program file."""

    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """Program and arguments, for example `[python3, world.py]`. No shell reads it."""
    files: list[str] = []
    """Further files and folders that it consists of. They and every file that `command` names are part of the keys."""
    timeout_seconds: Positive = 30.0
    """Time for one reply, the first one (with the start) included; for an agent, time for one episode."""
    limits: Limits = Limits()
    resolved: ResolvedCommand | None = None
    """Filled in when the program is resolved."""
