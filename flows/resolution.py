"""What the outside was resolved to, as data, and what of a program is used at all. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from flows.nodes import NODE_KINDS, Json, digest
from specs.command_references import own_programs
from specs.commands import ResolvedCommand
from specs.data import PoolData
from specs.errors import ProgramError
from specs.flywheel_references import without_main
from specs.implicit import flywheel_sets
from specs.positions import path_text
from specs.program import Program
from specs.teacher_choice import teachers_data, used_teachers

_LABELS = {"run", "budget", "schedule", "notify", "about", "tags"}
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
    teachers: dict[str, Json] = field(default_factory=dict[str, Json])
    """Teacher that is a checkpoint -> path, digest, stat, shape of its weights."""
    files: dict[str, Json] = field(default_factory=dict[str, Json])
    """Data set -> path, digest, rows, stat of its file."""
    aliases: dict[str, Json | None] = field(default_factory=dict[str, "Json | None"])
    """Registry alias -> version, digest, folder in the home; None where it does not exist yet."""
    promotions: int = 0
    """How many changes of the champion the registry held as aliases were looked up."""
    answers: dict[str, list[Json]] = field(default_factory=dict[str, "list[Json]"])
    """Gate node -> what people answered when it was held: evidence, verdict, by, at, why."""
    pools: dict[str, Json | None] = field(default_factory=dict[str, "Json | None"])
    """Pool -> version, digest, rows, folder in the home of what was published last; None where nothing was yet."""
    packages: dict[str, str] = field(default_factory=dict[str, str])
    """Package that data comes from -> version."""
    commands: dict[str, Json] = field(default_factory=dict[str, Json])
    """Place of a program of the user's own -> folder, digests of its files, version that it reports."""
    precision: str = "fp32"
    """What `auto` means: bf16 where the machine that resolved the program has such arithmetic."""
    machine: dict[str, float] = field(default_factory=dict[str, float])
    """Cores and memory; for estimates and threads, never part of a key."""
    code: str = ""
    """Digest of the versions of node kinds and of the program's environments and verifiers."""
    reused: bool = False
    """Moving names mean what they meant at the last run."""
    rounds_only: bool = False
    """The rounds of the flywheel are asked for alone; the first begins with the champion."""

    def to_dict(self) -> Json:
        """Return JSON-ready data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def resolution_from(data: Mapping[str, Any]) -> Resolution:
    """Return the resolution that `to_dict` wrote; keys of other versions are left out."""
    names = {f.name for f in fields(Resolution)}
    return Resolution(**{k: v for k, v in data.items() if k in names})


def of_rounds(found: Resolution, program: Program) -> Resolution:
    """Return the resolution of a run of rounds only. ProgramError where there are none, or nothing that they begin with."""
    for text in without_main(program):
        raise ProgramError(f"{program.program}: rounds only, but {text}")
    if found.aliases.get("champion") is None:
        raise ProgramError(
            f"{program.program}: rounds only, but there is no champion for them to begin with; run all of it once "
            "(`tutelage run`), or name one with `tutelage promote`"
        )
    return replace(found, rounds_only=True)


def code_digest(program: Program) -> str:
    """Return the digest of the versions that keys hold: where one was raised, nodes are done anew."""
    sections = {"environments": program.environments, "verifiers": program.verifiers}
    used = {f"{s}.{n}": f"{spec.kind}@{spec.version}" for s, found in sections.items() for n, spec in found.items()}
    return digest([{name: kind.version for name, kind in NODE_KINDS.items()}, used])


def same_outside(one: Resolution, other: Resolution, variables: Collection[str]) -> bool:
    """Return whether two resolutions looked at the same content, wherever it lies; what names mean is left out.

    `variables`: those of the environment that count.
    """
    return digest(_content(one, variables)) == digest(_content(other, variables))


def _content(found: Resolution, variables: Collection[str]) -> Json:
    return {
        "program": found.program_digest,
        "code": found.code,
        "env": {name: value for name, value in found.env.items() if name in variables},
        "weights": _without_place(found.weights or {}),
        "teachers": {name: _without_place(weights) for name, weights in found.teachers.items()},
        "files": {name: file["digest"] for name, file in found.files.items()},
        "packages": found.packages,
        "commands": {name: [known["files"], known["reported"]] for name, known in found.commands.items()},
    }


def _without_place(weights: Json) -> Json:
    return {"digest": weights.get("digest"), "adapter": (weights.get("adapter") or {}).get("digest")}


def program_digest(program: Program) -> str:
    """Return the digest of what a program means; execution settings, `about` and `tags` are no part of it."""
    return digest(program.model_dump(mode="json", by_alias=True, exclude=_LABELS))


def filled(program: Program, commands: Mapping[str, Json]) -> Program:
    """Return the program in which each program of the user's own knows what it was found to be."""
    places = {path: spec for path, spec in own_programs(program).items() if path_text(path) in commands}
    if not places:
        return program
    environments, verifiers = dict(program.environments), dict(program.verifiers)
    changes: Json = {"environments": environments, "verifiers": verifiers}
    for path, spec in places.items():
        known = ResolvedCommand.model_validate(commands[path_text(path)])
        made: Any = spec.model_copy(update={"resolved": known})
        if path[0] == "agent":
            changes["agent"] = made
        else:
            changes[str(path[0])][path[1]] = made
    return program.model_copy(update=changes)


def used_data(program: Program) -> list[str]:
    """Return the data sets that something reads, in the program's order."""
    return _known(program, _main(program) | set(flywheel_sets(program)))


def main_data(program: Program) -> list[str]:
    """Return the data sets that the main part, its evaluations and gates read: rounds move no key of theirs."""
    return _known(program, _main(program))


def environments_of(program: Program, name: str) -> list[str]:
    """Return the environments that the records of a data set or of a round's pool come from."""
    source = program.data.get(name)
    if source is None and program.flywheel is not None:
        mined = [*program.flywheel.mine.sources, *program.flywheel.causes_from]
        return list(dict.fromkeys(e for s in mined for e in environments_of(program, s)))
    if source is None or isinstance(source, PoolData):
        others = [s.environment for s in program.data.values() if not isinstance(s, PoolData)]
        return list(dict.fromkeys(others))
    return [source.environment]


def _main(program: Program) -> set[str]:
    used: set[str] = set()
    for stage in program.stages:
        used.update(stage.reads)
    used.update(teachers_data(program))
    if program.policy.init.kind == "scratch":
        used.add(program.policy.init.tokenizer.train_on)
    used.update(program.evaluation.sets, program.evaluation.at_the_end)
    for gate in program.gates.values():
        used.update(r.set for r in gate.require)
    return used


def _known(program: Program, used: set[str]) -> list[str]:
    unknown = sorted(used - set(program.data))
    if unknown:
        raise ProgramError(
            f"{program.program}: no data set is called {', '.join(unknown)}; expected one of {', '.join(program.data)}"
        )
    return [name for name in program.data if name in used]


def gate_aliases(program: Program) -> list[str]:
    """Return the registry aliases that a program's gates need; the champion wherever something may be promoted."""
    wanted: set[str] = {g.baseline.alias for g in program.gates.values() if g.baseline.alias is not None}
    if any(g.on_pass == "promote" for g in program.gates.values()):
        wanted.add("champion")
    return sorted(wanted)


def wanted_aliases(program: Program) -> list[str]:
    """Return the registry aliases that a program needs: a round may start from the champion, and either may teach."""
    teaching = {getattr(program.teachers[name], "of", None) for name in used_teachers(program)}
    asked = [alias for alias in ("champion", "previous") if alias in teaching]
    return sorted({*gate_aliases(program), *asked, *(["champion"] if program.flywheel is not None else [])})
