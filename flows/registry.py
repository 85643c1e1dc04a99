"""The registered policies of a program and their aliases: the durable truth, mirrored to MLflow from the side.

`.tutelage/registry/<program>.json` names versions, aliases (`champion`, `challenger`, `previous`) and promotions;
`.tutelage/registry/<program>/v<N>/` is the policy, hard-linked from the node that made it. A promotion happens once
for a gate record and a policy, however often it is asked for.
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from flows.durable import copy_tree, digest_tree, fault_point, sha256_file, write_dir, write_json
from flows.leases import short_lock
from specs.errors import StateError, UsageError

Alias = Literal["champion", "challenger", "previous"]
ALIASES: tuple[Alias, ...] = ("champion", "challenger", "previous")
ANY = "any"
"""Whatever champion there is gives way: a person says so."""


@dataclass(frozen=True, slots=True)
class Version:
    """One registered policy."""

    version: int
    digest: str
    """sha256 over the policy's files."""
    folder: str
    """Relative to the home."""
    stage: str
    gate: str | None
    """sha256 of the gate record that let it in; None where a person did."""
    execution: str | None
    time: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A change of the champion, or the finding that nothing had to change or could."""

    key: str
    """Gate record and policy: the same key never promotes twice."""
    version: int
    digest: str
    previous: int | None
    result: Literal["promoted", "already_promoted", "rolled_back", "challenger"]
    time: str
    reason: str = ""


@dataclass(slots=True)
class Registry:
    """What is registered of one program."""

    program: str
    versions: list[Version] = field(default_factory=list[Version])
    aliases: dict[str, int] = field(default_factory=dict[str, int])
    promotions: list[Promotion] = field(default_factory=list[Promotion])

    def get(self, version: int) -> Version | None:
        """Return a version by number."""
        return next((v for v in self.versions if v.version == version), None)

    def alias(self, alias: str) -> Version | None:
        """Return the version an alias names."""
        number = self.aliases.get(alias)
        return None if number is None else self.get(number)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy that wants in: its folder, the stage and execution that made it, and the gate record's digest."""

    policy: Path
    stage: str
    gate: str | None = None
    execution: str | None = None
    reason: str = ""


def path_of(home: Path, program: str) -> Path:
    """Return the registry file of a program."""
    return home / "registry" / f"{program}.json"


def policy_digest(folder: Path) -> str:
    """Return the digest of a policy folder: one sha256 over the names, sizes and contents of its files."""
    return digest_tree(folder)


def load(home: Path, program: str) -> Registry:
    """Return what is registered; empty where nothing is. StateError for a damaged file."""
    path = path_of(home, program)
    try:
        data = json.loads(path.read_bytes())
        return Registry(
            data["program"],
            [Version(**v) for v in data["versions"]],
            data["aliases"],
            [Promotion(**p) for p in data["promotions"]],
        )
    except FileNotFoundError:
        return Registry(program)
    except (ValueError, TypeError, KeyError) as e:
        raise StateError(
            f"{path}: damaged registry ({e}); restore it from a copy, or move it away to start a new one "
            f"(the policies in {path.with_suffix('')} stay)"
        ) from e


def champion(home: Path, program: str) -> Version | None:
    """Return the champion, if there is one."""
    return load(home, program).alias("champion")


def checked_folder(home: Path, version: Version) -> Path:
    """Return a version's folder after comparing it with its digest. StateError where it is missing or damaged."""
    folder = home / version.folder
    found = policy_digest(folder) if folder.is_dir() else "nothing"
    if found != version.digest:
        raise StateError(
            f"{folder}: registered policy v{version.version} is damaged or missing (found {found[:12]}, expected "
            f"{version.digest[:12]}); run `tutelage rollback` to the previous champion, or run the program again"
        )
    return folder


def challenge(home: Path, program: str, candidate: Candidate) -> Version:
    """Register a candidate as the challenger and return its version; the champion stays."""
    with short_lock(home / "registry" / ".lock"):
        return _challenge(home, load(home, program), candidate)


def _challenge(home: Path, registry: Registry, candidate: Candidate) -> Version:
    version = _register(home, registry, candidate)
    if registry.aliases.get("champion") != version.version:
        registry.aliases["challenger"] = version.version
    _save(home, registry)
    return version


def promote(home: Path, program: str, candidate: Candidate, *, expected: str | None = ANY) -> Promotion:
    """Make a candidate the champion, once for its gate record and digest; the champion before becomes `previous`.

    `expected`: digest of the champion that may give way, None where there must be none. Where there is another, the
    candidate becomes the challenger, and nothing else changes.
    """
    with short_lock(home / "registry" / ".lock"):
        registry = load(home, program)
        digest = policy_digest(candidate.policy)
        key = f"{candidate.gate or 'person'}:{digest}"
        now = registry.alias("champion")
        done = next((p for p in registry.promotions if p.key == key), None)
        if done is not None and candidate.gate is not None:
            return done
        if now is not None and now.digest == digest:
            promotion = Promotion(
                key, now.version, digest, registry.aliases.get("previous"), "already_promoted", _now(), candidate.reason
            )
        elif expected not in (ANY, None if now is None else now.digest):
            version = _challenge(home, registry, candidate)
            return Promotion(key, version.version, digest, None, "challenger", _now(), candidate.reason)
        else:
            version = _register(home, registry, candidate)
            previous = None if now is None else now.version
            promotion = Promotion(key, version.version, digest, previous, "promoted", _now(), candidate.reason)
            _move_champion(registry, version.version, previous)
        registry.promotions.append(promotion)
        fault_point("before_switch")
        _save(home, registry)
        fault_point("after_switch")
        return promotion


def rollback(home: Path, program: str, reason: str = "") -> Promotion:
    """Swap champion and previous. StateError where there is no previous champion."""
    with short_lock(home / "registry" / ".lock"):
        registry = load(home, program)
        now, before = registry.alias("champion"), registry.alias("previous")
        if now is None or before is None:
            raise UsageError(
                f"{program}: there is no previous champion to go back to; "
                f"name a version with `tutelage promote {program} VERSION --reason TEXT`"
            )
        checked_folder(home, before)
        promotion = Promotion(
            f"rollback:{before.digest}", before.version, before.digest, now.version, "rolled_back", _now(), reason
        )
        _move_champion(registry, before.version, now.version)
        registry.promotions.append(promotion)
        _save(home, registry)
        return promotion


def _move_champion(registry: Registry, version: int, previous: int | None) -> None:
    registry.aliases["champion"] = version
    if previous is not None:
        registry.aliases["previous"] = previous
    if registry.aliases.get("challenger") == version:
        del registry.aliases["challenger"]


def _register(home: Path, registry: Registry, candidate: Candidate) -> Version:
    """Return the version of a candidate's digest, a new one where it is not there yet; its files come first."""
    digest = policy_digest(candidate.policy)
    found = next((v for v in registry.versions if v.digest == digest), None)
    if found is not None:
        if policy_digest(home / found.folder) != digest:  # damaged or removed since
            _link_tree(candidate.policy, home / found.folder)
        return found
    number = max((v.version for v in registry.versions), default=0) + 1
    folder = home / "registry" / registry.program / f"v{number}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    _link_tree(candidate.policy, folder)
    version = Version(
        number,
        digest,
        folder.relative_to(home).as_posix(),
        candidate.stage,
        candidate.gate,
        candidate.execution,
        _now(),
        candidate.reason,
    )
    registry.versions.append(version)
    return version


def _link_tree(source: Path, final: Path) -> None:
    write_dir(final, lambda aside: copy_tree(source, aside, link=True))


def gate_digest(gate_file: Path) -> str:
    """Return the digest of a gate record."""
    return sha256_file(gate_file)


def _save(home: Path, registry: Registry) -> None:
    data: dict[str, Any] = asdict(registry)
    write_json(path_of(home, registry.program), data)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
