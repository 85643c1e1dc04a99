"""What the outside was resolved to, as data, and what of a program is used at all. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from flows.nodes import Json, digest
from specs.errors import ProgramError
from specs.program import Program

_LABELS = {"run", "budget", "about", "tags"}
"""Sections that are no part of what a program means."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What moving names meant when they were looked at. JSON-ready; holds no value of an environment variable."""

    program_digest: str
    file: str | None = None
    """The program's file."""
    salt: str = ""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variable -> salted digest of its value."""
    weights: Json | None = None
    """Pretrained weights: path, digest, stat, shape."""
    files: dict[str, Json] = field(default_factory=dict[str, Json])
    """Data set -> path, digest, rows, stat of its file."""
    aliases: dict[str, Json | None] = field(default_factory=dict[str, "Json | None"])
    """Registry alias -> version, digest, folder in the home; None where it does not exist yet."""
    asked: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    """Plan key of a data set -> digests of the policies that gates asked it about, in order."""
    packages: dict[str, str] = field(default_factory=dict[str, str])
    """Package that data comes from -> version."""
    precision: str = "fp32"
    """What `auto` means: bf16 where the machine that resolved the program has such arithmetic."""
    machine: dict[str, float] = field(default_factory=dict[str, float])
    """Cores and memory; for estimates and threads, never part of a key."""
    reused: bool = False
    """Aliases and looks are those of the last run."""

    def to_dict(self) -> Json:
        """Return JSON-ready data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def resolution_from(data: Mapping[str, Any]) -> Resolution:
    """Return the resolution that `to_dict` wrote; keys of other versions are left out."""
    names = {f.name for f in fields(Resolution)}
    return Resolution(**{k: v for k, v in data.items() if k in names})


def program_digest(program: Program) -> str:
    """Return the digest of what a program means; execution settings, `about` and `tags` are no part of it."""
    return digest(program.model_dump(mode="json", by_alias=True, exclude=_LABELS))


def used_data(program: Program) -> list[str]:
    """Return the data sets that something reads, in the program's order."""
    used: set[str] = set()
    for stage in program.stages:
        used.update(stage.data)
    if program.policy.init.kind == "scratch":
        used.add(program.policy.init.tokenizer.train_on)
    used.update(program.evaluation.sets, program.evaluation.at_the_end)
    for gate in program.gates.values():
        used.update(r.set for r in gate.require)
    unknown = sorted(used - set(program.data))
    if unknown:
        raise ProgramError(
            f"{program.program}: no data set is called {', '.join(unknown)}; expected one of {', '.join(program.data)}"
        )
    return [name for name in program.data if name in used]


def wanted_aliases(program: Program) -> list[str]:
    """Return the registry aliases that a program's gates need; the champion wherever something may be promoted."""
    wanted: set[str] = {g.baseline.alias for g in program.gates.values() if g.baseline.alias is not None}
    if any(g.on_pass == "promote" for g in program.gates.values()):
        wanted.add("champion")
    return sorted(wanted)
