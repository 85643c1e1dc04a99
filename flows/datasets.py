"""Data sets and trajectories as DVC versions: `program/name`, versions v1, v2, …, each a commit on the branch `data`.

A version is a commit id, never a branch name. One publisher at a time; what a kill left half-written was never
committed and is swept away by the next publication.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.databranch import DataBranch, Say, existing, git, has_remote, settings_are_ours, writing
from flows.durable import FileEntry, digest_entries, sha256_file, write_dir, write_durable
from flows.state import State
from specs.errors import StateError, UsageError
from tasks.boundary import foreign

_FILES = ".dvc/config", ".dvc/.gitignore", "tutelage-data.json"


@dataclass(frozen=True, slots=True)
class Item:
    """What is to be published: files of a node's output with the sizes and digests its receipt tells."""

    name: str
    """`program/data set`."""
    folder: Path
    """The node's `out`."""
    entries: list[FileEntry]
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    """`kind, node, run_key` and so on; stored with the version."""

    @property
    def digest(self) -> str:
        """Return the digest of the content."""
        return digest_entries(self.entries)


@dataclass(frozen=True, slots=True)
class DataVersion:
    """A published version."""

    name: str
    version: int
    digest: str
    """sha256 over paths, sizes and contents."""
    md5: str
    """DVC's digest, `<md5>.dir`."""
    size: int
    files: int
    about: dict[str, Any]
    commit: str = ""


def publish(home: Path, items: Sequence[Item], message: str, *, say: Say, seconds: float = 30.0) -> list[DataVersion]:
    """Publish items in one commit and return their versions; content that is a version already gets no second one.

    StateError where a file differs from its receipt, or another process writes for longer than `seconds`;
    ServiceError where git or DVC refuse. Then nothing of it is recorded.
    """
    with writing(home, say, seconds=seconds) as branch:
        known = {i.name: versions_of(branch, i.name) for i in items}
        result = {i.name: v for i in items for v in known[i.name] if v.digest == i.digest}
        new = [i for i in items if i.name not in result]
        lost = [i for i in items if i.name in result and not _intact(branch, result[i.name])]
        for item in (*new, *lost):
            _copy(item, branch.worktree / item.name)
        md5s = _add(branch, [i.name for i in (*new, *lost)])
        for item in new:
            size, count = sum(e.size for e in item.entries), len(item.entries)
            number = max((v.version for v in known[item.name]), default=0) + 1
            version = DataVersion(item.name, number, item.digest, md5s[item.name], size, count, item.about)
            text = json.dumps({k: v for k, v in asdict(version).items() if k != "commit"}, indent=1, sort_keys=True)
            write_durable(branch.worktree / f"{item.name}.json", f"{text}\n")
            result[item.name] = version
        commit = _commit(branch, [i.name for i in new], message)
        for item in (*new, *lost):
            shutil.rmtree(branch.worktree / item.name)
        for item in lost:
            say(f"{item.name} v{result[item.name].version}: objects that were missing are back in the cache")
        for item in new:
            result[item.name] = replace(result[item.name], commit=commit)
    return [result[i.name] for i in items]


def _intact(branch: DataBranch, version: DataVersion) -> bool:
    """Return whether every object of a version lies in the cache (contents are compared when they are used)."""
    listing = _cache_path(branch, version.md5)
    if not listing.exists():
        return False
    try:
        return all(_cache_path(branch, e["md5"]).exists() for e in json.loads(listing.read_bytes()))
    except (ValueError, KeyError, TypeError):
        listing.unlink()
        return False


def _copy(item: Item, target: Path) -> None:
    """Copy an item's files to where DVC takes them from, comparing each with its receipt."""
    shutil.rmtree(target, ignore_errors=True)
    for entry in item.entries:
        source = item.folder / entry.path
        path = target / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, path)
        except OSError as e:
            raise StateError(
                f"{source}: cannot be versioned as {item.name} ({e.strerror}); run the program again"
            ) from e
        if path.stat().st_size != entry.size or sha256_file(path) != entry.sha256:
            raise StateError(
                f"{source}: differs from its receipt, so it is not versioned as {item.name}; run the program again"
            )


def _add(branch: DataBranch, names: list[str]) -> dict[str, str]:
    """Hand folders to DVC and return its digest of each."""
    if not names:
        return {}
    from dvc.repo import Repo
    from dvc.ui import ui

    logging.getLogger("dvc").setLevel(logging.ERROR)
    ui.write = lambda *_, **__: None  # hints about `git add`, which happens below
    with foreign(f"DVC cannot add {', '.join(names)} in {branch.worktree}"), Repo(str(branch.worktree)) as opened:
        repo: Any = opened
        stages = repo.add([str(branch.worktree / n) for n in names])
        return {n: str(s.outs[0].hash_info.value) for n, s in zip(names, stages, strict=True)}


def _commit(branch: DataBranch, names: list[str], message: str) -> str:
    paths = [f"{n}{end}" for n in names for end in (".dvc", ".json")]
    paths += sorted({str(Path(n).parent / ".gitignore") for n in names})
    branch.git("add", "-f", "--", *_FILES, *paths)
    if git(branch.worktree, "status", "--porcelain", "--untracked-files=no"):
        branch.git("commit", "-q", "--no-verify", "-m", message)
    return branch.git("rev-parse", "HEAD")


# --- reading


def latest(home: Path) -> list[DataVersion]:
    """Return the newest version of every published name, by name."""
    branch = existing(home)
    if branch is None:
        return []
    names = git(branch.worktree, "ls-tree", "-r", "--name-only", branch.reference).splitlines()
    found = [versions_of(branch, n[: -len(".dvc")]) for n in names if n.endswith(".dvc")]
    return [v[0] for v in found if v]


def history(home: Path, name: str) -> list[DataVersion]:
    """Return every version of a full name, the newest first."""
    branch = existing(home)
    return [] if branch is None else versions_of(branch, name)


def repository_to_name(home: Path) -> Path | None:
    """Return what `dvc.api` must be given as `repo`; None where the user's checkout will do."""
    branch = existing(home)
    if branch is None:
        return None
    if branch.project is None:
        return branch.worktree
    return None if settings_are_ours(branch.project) else home / "dvc" / "worktree"


def versions_of(branch: DataBranch, name: str) -> list[DataVersion]:
    """Return every version of a name, the newest first."""
    path = f"{name}.json"
    commits = git(branch.worktree, "log", "--format=%H", branch.reference, "--", path, check=False).split()
    found = [_version_at(branch, path, c) for c in commits]
    return [v for v in found if v is not None]


def _version_at(branch: DataBranch, path: str, commit: str) -> DataVersion | None:
    text = git(branch.worktree, "show", f"{commit}:{path}", check=False)
    try:
        return DataVersion(**json.loads(text), commit=commit)
    except (ValueError, TypeError):
        return None


def find(home: Path, spec: str) -> DataVersion:
    """Return the version that `NAME` or `NAME@VERSION` (a number, `vN`, a commit or a digest) means.

    DataError names what is there instead.
    """
    name, _, wanted = spec.partition("@")
    branch = existing(home)
    found = versions_of(branch, _full_name(home, branch, name)) if branch is not None else []
    if not found:
        names = ", ".join(v.name for v in latest(home)) or "nothing (run a program first)"
        raise UsageError(f"{name}: no published data set is called so; there is: {names}")
    if not wanted:
        return found[0]
    for v in found:
        if wanted.removeprefix("v") == str(v.version):
            return v
    close = [v for v in found if len(wanted) >= 6 and (v.commit.startswith(wanted) or v.digest.startswith(wanted))]
    if not close:
        there = ", ".join(f"v{v.version} ({v.commit[:8]})" for v in found)
        raise UsageError(f"{spec}: no such version of {found[0].name}; there is: {there}")
    return close[0]


def _full_name(home: Path, branch: DataBranch, name: str) -> str:
    """Return `program/name` for a bare name that only one program has."""
    if "/" in name:
        return name
    matching = [v.name for v in latest(home) if v.name.rpartition("/")[2] == name]
    if len(matching) > 1:
        raise UsageError(f"{name}: several programs have one; name one of {', '.join(matching)}")
    return matching[0] if matching else name


def checkout(home: Path, version: DataVersion, target: Path, *, say: Say) -> int:
    """Copy a version's files into a new or empty folder, each compared with its digest; return how many.

    Objects that are not here are asked of the DVC remote. StateError names the one that is missing or damaged; then
    the folder is as it was.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: not empty; name a folder that is new or empty")
    branch = existing(home)
    assert branch is not None, "a version was found, so there is a branch"
    return write_dir(target.absolute(), lambda aside: _copy_out(branch, version, aside, say))


def _copy_out(branch: DataBranch, version: DataVersion, folder: Path, say: Say) -> int:
    if not _intact(branch, version) and has_remote(branch):
        _fetch(branch, version, say)
    listing = list(_listing(branch, version))
    for name, md5 in listing:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_object(branch, version, md5), path)
        if _md5(path) != md5:
            raise _damaged(branch, version, md5)
    return len(listing)


def _listing(branch: DataBranch, version: DataVersion) -> Iterator[tuple[str, str]]:
    path = _object(branch, version, version.md5)
    if f"{_md5(path)}.dir" != version.md5:
        raise _damaged(branch, version, version.md5)
    for entry in json.loads(path.read_bytes()):
        yield entry["relpath"], entry["md5"]


def _cache_path(branch: DataBranch, md5: str) -> Path:
    return branch.cache / "files" / "md5" / md5[:2] / md5[2:]


def _object(branch: DataBranch, version: DataVersion, md5: str) -> Path:
    path = _cache_path(branch, md5)
    if not path.exists():
        raise _missing(branch, version, path)
    return path


def _fetch(branch: DataBranch, version: DataVersion, say: Say) -> None:
    """Ask the DVC remote for a version's objects, in the worktree, which a fresh clone is given first."""
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    asked = f"{version.name} v{version.version}: the DVC remote does not give it"
    State(branch.home).prepare()
    with writing(branch.home, say) as ours:
        path = ours.worktree / f"{version.name}.dvc"
        write_durable(path, ours.git("show", f"{version.commit}:{version.name}.dvc") + "\n")
        # not by DVC's `revs`: those take the remote from the revision, where it may not have been named yet
        with foreign(asked), Repo(str(ours.worktree)) as opened:
            repo: Any = opened
            repo.fetch(targets=[str(path)])
        ours.git("checkout", "-q", "HEAD", "--", f"{version.name}.dvc")


def _missing(branch: DataBranch, version: DataVersion, path: Path) -> StateError:
    elsewhere = "the DVC remote has it neither" if has_remote(branch) else "no DVC remote is named to fetch it from"
    return StateError(
        f"{version.name} v{version.version}: {path} is missing, and {elsewhere}; `dvc push` it where the version was made, "
        f"to a remote that the branch names, or run {version.about.get('program', 'the program')} again"
    )


def _damaged(branch: DataBranch, version: DataVersion, md5: str) -> StateError:
    again = "check out again" if has_remote(branch) else f"run {version.about.get('program', 'the program')} again"
    return StateError(
        f"{version.name} v{version.version}: {_cache_path(branch, md5)} is damaged; delete it and {again}"
    )


def _md5(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
