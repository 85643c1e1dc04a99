"""The branch `data` of the project's git repository, in a linked worktree of our own under `.tutelage/dvc/`.

The user's files, index and branch are never touched; beside them lies only an ignored `.dvc/` that says where the
cache is. Without a git repository a private one is kept instead.
Everything that changes the worktree happens under one lock, by one process at a time.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.durable import move, write_durable
from flows.leases import Lease, foreign_holder, process_from
from specs.errors import ServiceError, StateError
from tasks import processes
from tasks.processes import Done

BRANCH = "data"
LOCAL = f"refs/heads/{BRANCH}"
MARKER = "tutelage-data.json"
LOCK_SECONDS = 30.0
Say = Callable[[str], None]
_IGNORE_ALL = "# written by tutelage: where the data versions of this machine are\n*\n"
_GIT_SECONDS = 120.0
_STALE_GIT_LOCK = 10.0  # seconds after which a lock of git's in a worktree that only we use belongs to nobody


@dataclass(frozen=True, slots=True)
class DataBranch:
    """Where data versions are committed. `worktree` holds the DVC repository, `project` the user's checkout."""

    home: Path
    worktree: Path
    project: Path | None
    """None where the versions live in a private repository, made while the project was none."""
    reference: str = LOCAL
    """Where its newest commit is read: a remote's branch where that is ahead, or where this clone has none of its own."""

    @property
    def cache(self) -> Path:
        """Return the DVC cache that all revisions share."""
        return self.home / "dvc" / "cache"

    def git(self, *arguments: str) -> str:
        """Run git in the worktree and return what it printed. ServiceError where it fails."""
        return git(self.worktree, *arguments)


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    """Run git in a folder, with an identity of our own where the user has none and without hooks or signing."""
    settings = ["core.hooksPath=/dev/null", "commit.gpgsign=false", "core.autocrlf=false", "advice.detachedHead=false"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_CONFIG_")}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    for who in ("AUTHOR", "COMMITTER"):
        environment[f"GIT_{who}_NAME"] = _identity(folder, "user.name", environment) or "tutelage"
        environment[f"GIT_{who}_EMAIL"] = _identity(folder, "user.email", environment) or "tutelage@localhost"
    command = ["git", *(x for s in settings for x in ("-c", s)), *arguments]
    done = _run(folder, command, environment)
    if check and done.code != 0:
        raise ServiceError(f"git {arguments[0]} in {folder}: {done.err.strip() or done.code}")
    return done.out.rstrip("\n") if done.code == 0 else ""


def _identity(folder: Path, key: str, environment: dict[str, str]) -> str:
    return _run(folder, ["git", "config", key], environment).out.strip()


def _run(folder: Path, command: list[str], environment: dict[str, str], text: str = "") -> Done:
    try:
        return processes.run(command, seconds=_GIT_SECONDS, cwd=folder, env=environment, text=text)
    except FileNotFoundError as e:
        if not folder.is_dir():
            raise ServiceError(f"{folder}: no such folder; the next publication makes it again") from e
        raise ServiceError("git is not installed; data versions need it: install git, the next run sends them") from e
    except TimeoutError as e:
        raise ServiceError(f"{folder}: {e}") from e


def existing(home: Path) -> DataBranch | None:
    """Return the data branch if anything was published here; changes nothing."""
    project = project_of(home)
    newest = None if project is None else _newest(project)
    if project is not None and newest is not None:
        return DataBranch(home, project, project, newest)
    return DataBranch(home, private_of(home), None) if (private_of(home) / ".git").exists() else None


def private_of(home: Path) -> Path:
    """Return where versions are kept while the project is no git repository."""
    return home / "dvc" / "repo"


def _newest(project: Path) -> str | None:
    """Return the branch whose versions are the newest: this clone's, or a remote's that it is behind or has none of."""
    upstream = _upstream(project)
    if not git(project, "rev-parse", "-q", "--verify", LOCAL, check=False):
        return upstream
    if upstream is None or git(project, "rev-list", "--count", f"{upstream}..{LOCAL}") != "0":
        return LOCAL
    return LOCAL if git(project, "rev-list", "--count", f"{LOCAL}..{upstream}") == "0" else upstream


def _upstream(project: Path) -> str | None:
    """Return the branch of data versions that a remote has, origin's first."""
    found = git(project, "for-each-ref", "--format=%(refname)", f"refs/remotes/*/{BRANCH}").split()
    found.sort(key=lambda r: r != f"refs/remotes/origin/{BRANCH}")
    return next((r for r in found if git(project, "cat-file", "-t", f"{r}:{MARKER}", check=False)), None)


def project_of(home: Path) -> Path | None:
    """Return the root of the git repository that the project lies in; None where there is none."""
    folder = next((p for p in home.absolute().parents if p.exists()), Path("/"))
    root = git(folder, "rev-parse", "--show-toplevel", check=False)
    if not root and (folder / ".git").exists():
        git(folder, "rev-parse", "--show-toplevel")  # a repository that git refuses to read: say why
    return Path(root) if root else None


def prepare(home: Path, say: Say) -> DataBranch:
    """Return the data branch, made where it is missing. Call it with the lock held."""
    project = project_of(home)
    if project is None:
        branch = DataBranch(home, private_of(home), None)
        if not (branch.worktree / ".git").exists():
            branch.worktree.mkdir(parents=True, exist_ok=True)
            git(branch.worktree, "init", "-q", "-b", BRANCH)
            say(
                f"{home.parent} is no git repository: data versions are kept in {branch.worktree}, local to this folder"
            )
        edited = _edited_settings(branch)
    else:
        branch = DataBranch(home, home / "dvc" / "worktree", project)
        linked = (branch.worktree / ".git").exists() and git(branch.worktree, "rev-parse", "--git-dir", check=False)
        edited = _edited_settings(branch) if linked else None
        _take_newest(branch, project, say)
        if not linked:
            _link_worktree(branch, project)
    _clear_git_locks(branch, say)
    if git(branch.worktree, "rev-parse", "-q", "--verify", "HEAD", check=False):
        branch.git("reset", "-q", "--hard")
        branch.git("clean", "-q", "-f", "-d", "-x", "-e", ".dvc")
        if edited is not None:
            _write_if_other(branch.worktree / ".dvc" / "config", edited)
    _write_settings(branch)
    return branch


def _edited_settings(branch: DataBranch) -> str | None:
    """Return DVC settings that are not committed: a remote that somebody added; the next version commits them."""
    config = branch.worktree / ".dvc" / "config"
    if not config.exists():
        return None
    text = config.read_text(encoding="utf-8")
    committed = git(branch.worktree, "show", "HEAD:.dvc/config", check=False)
    return text if text.rstrip("\n") != committed else None


def _take_newest(branch: DataBranch, project: Path, say: Say) -> None:
    """Make the branch where it is missing, from a remote's or the private repository, and catch up with a remote's."""
    newest, private = _newest(project), private_of(branch.home)
    kept = (private / ".git").exists() and git(private, "rev-parse", "-q", "--verify", LOCAL, check=False)
    if newest is None and kept:
        git(project, "fetch", "-q", "--no-tags", str(private), f"{LOCAL}:{LOCAL}")
        say(f"{project} is a git repository now: its branch {BRANCH} begins with the data versions of {private}")
    elif newest is None:
        git(project, "update-ref", LOCAL, _first_commit(project))
    elif newest != LOCAL:
        if kept and not git(project, "rev-parse", "-q", "--verify", LOCAL, check=False):
            say(
                f"the branch {BRANCH} of {project} begins with {newest}; the data versions of {private} stay there alone"
            )
        git(project, "update-ref", LOCAL, newest)
    _check_ours(project, LOCAL)


def _link_worktree(branch: DataBranch, project: Path) -> None:
    """Link the worktree to the branch."""
    branch.worktree.parent.mkdir(parents=True, exist_ok=True)
    git(project, "worktree", "prune")
    if branch.worktree.exists():
        move(branch.worktree, branch.worktree.with_name(f"worktree.unlinked.{time.time_ns()}"))
    git(project, "worktree", "add", "-q", str(branch.worktree), BRANCH)


def _first_commit(project: Path) -> str:
    blob = _hash(project, json.dumps({"schema": 1}) + "\n", ["hash-object", "-w", "--stdin"])
    tree = _hash(project, f"100644 blob {blob}\t{MARKER}\n", ["mktree"])
    return git(project, "commit-tree", tree, "-m", "Data versions of tutelage")


def _hash(project: Path, text: str, arguments: list[str]) -> str:
    done = _run(project, ["git", *arguments], dict(os.environ), text)
    if done.code != 0:
        raise ServiceError(f"git {arguments[0]} in {project}: {done.err.strip()}")
    return done.out.strip()


def _check_ours(project: Path, reference: str) -> None:
    if not git(project, "cat-file", "-t", f"{reference}:{MARKER}", check=False):
        raise ServiceError(
            f"{project}: the branch {BRANCH!r} is not tutelage's (it has no {MARKER}); expected a branch of data "
            f"versions; rename yours (`git branch -m {BRANCH} other`), the next run then makes one"
        )


def _write_settings(branch: DataBranch) -> None:
    """Write the DVC settings: what all machines share into the branch, what is this machine's beside it, uncommitted.

    DVC takes the settings of a revision from the branch, but those of the machine from the checkout that it is called
    in. So the user's checkout gets them too, in a folder that git ignores, unless it has DVC settings of its own.
    """
    folder = branch.worktree / ".dvc"
    branch.cache.mkdir(parents=True, exist_ok=True)
    _write_config(folder / "config", ["analytics = false", "check_update = false", "autostage = false"])
    _write_if_other(folder / ".gitignore", "/config.local\n/tmp\n/cache\n")
    _write_if_other(branch.worktree / MARKER, json.dumps({"schema": 1}) + "\n")
    _write_local(branch, folder / "config.local")
    if branch.project is not None and settings_are_ours(branch.project):
        _write_if_other(branch.project / ".dvc" / ".gitignore", _IGNORE_ALL)
        _write_local(branch, branch.project / ".dvc" / "config.local")


def has_remote(branch: DataBranch) -> bool:
    """Return whether the branch, or this machine's settings of it, name the DVC remote to fetch from."""
    folder = branch.worktree if branch.project is None else branch.home / "dvc" / "worktree"
    texts = [git(branch.worktree, "show", f"{branch.reference}:.dvc/config", check=False)]
    texts += [p.read_text(encoding="utf-8") for p in (folder / ".dvc").glob("config*")]
    return any(_remotes(text)[0] for text in texts)


def settings_are_ours(project: Path) -> bool:
    """Return whether the checkout has no DVC settings but those that we write."""
    ignore = project / ".dvc" / ".gitignore"
    return not ignore.parent.exists() or (ignore.is_file() and ignore.read_text(encoding="utf-8") == _IGNORE_ALL)


def _write_local(branch: DataBranch, path: Path) -> None:
    """Write where this machine has its cache; what somebody added about remotes (a password) stays."""
    cache = f"[cache]\n    dir = {branch.cache}\n    type = reflink,hardlink,copy\n"
    _write_config(path, [f"site_cache_dir = {branch.home / 'dvc' / 'site'}"], cache)


def _write_config(path: Path, core: list[str], more: str = "") -> None:
    """Write DVC settings, keeping the remotes that somebody added and which of them is the default."""
    default, remotes = _remotes(path.read_text(encoding="utf-8") if path.exists() else "")
    lines = "".join(f"    {line}\n" for line in [*core, *default])
    _write_if_other(path, f"[core]\n{lines}{more}{remotes}")


def _write_if_other(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(exist_ok=True)
        write_durable(path, text)


def _remotes(settings: str) -> tuple[list[str], str]:
    """Return the line that names the default remote, if there is one, and the sections of all remotes."""
    default: list[str] = []
    sections: list[str] = []
    kept = False
    for line in settings.splitlines():
        if line.startswith("["):
            kept = line.startswith(("[remote", "['remote"))
        if kept:
            sections.append(f"{line}\n")
        elif line.strip().startswith("remote ="):
            default = [line.strip()]
    return default, "".join(sections)


# --- locks


@contextlib.contextmanager
def writing(home: Path, say: Say, *, seconds: float = LOCK_SECONDS) -> Iterator[DataBranch]:
    """Hold the one right to change data versions. StateError naming the owner where another keeps it for too long."""
    folder = home / "dvc"
    folder.mkdir(parents=True, exist_ok=True)
    lease = Lease(folder / "lock")
    before = process_from(lease.read().get("holder"))
    until = time.monotonic() + seconds
    while not lease.try_acquire():
        if time.monotonic() > until:
            holder = process_from(lease.read().get("holder"))
            who = f"process {holder.pid} on {holder.host}, since {holder.since}" if holder else "another process"
            raise StateError(
                f"{folder / 'lock'}: data versions are being written by {who} for over {seconds:.0f} s; "
                "wait for it or end it; what is not versioned yet is sent by the next run"
            )
        time.sleep(0.1)
    try:
        if before is not None and not before.alive:
            say(f"lock on data versions cleared: its owner, process {before.pid} (since {before.since}), is gone")
        branch = prepare(home, say)
        wait_for_dvc(branch, say, seconds=max(0.0, until - time.monotonic()))
        yield branch
        (branch.worktree / ".dvc" / "tmp" / "lock").unlink(missing_ok=True)  # DVC leaves it, with our pid, unlocked
    finally:
        lease.release()


def _clear_git_locks(branch: DataBranch, say: Say) -> None:
    """Remove locks of git's that a kill left in our worktree; a fresh one is waited for."""
    folder = Path(git(branch.worktree, "rev-parse", "--absolute-git-dir"))
    common = Path(git(branch.worktree, "rev-parse", "--git-common-dir"))
    if not common.is_absolute():
        common = branch.worktree / common
    for path in (folder / "index.lock", folder / "HEAD.lock", common / "refs" / "heads" / f"{BRANCH}.lock"):
        while path.exists():
            if time.time() - path.stat().st_mtime > _STALE_GIT_LOCK:
                path.unlink(missing_ok=True)
                say(f"{path}: lock of a git process that is gone, cleared")
                break
            time.sleep(0.1)


def wait_for_dvc(branch: DataBranch, say: Say, *, seconds: float) -> None:
    """Clear DVC locks of dead processes in the worktree and wait for living ones. StateError naming the owner."""
    until = time.monotonic() + seconds
    while True:
        owner = _rwlock_owner(branch.worktree / ".dvc" / "tmp" / "rwlock", say)
        owner = owner or _lock_owner(branch.worktree / ".dvc" / "tmp" / "lock", say)
        if owner is None:
            return
        if time.monotonic() > until:
            raise StateError(
                f"{branch.worktree}: DVC is locked by {owner}; wait for it or end it; "
                "what is not versioned yet is sent by the next run"
            )
        time.sleep(0.1)


def _lock_owner(path: Path, say: Say) -> str | None:
    """Return who holds DVC's repository lock (a flock with the owner's pid inside); None where nobody lives."""
    try:
        if (holder := foreign_holder(path)) is not None:
            return f"process {holder}"
        pid = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    if pid.isdigit() and not _runs(int(pid)):
        path.unlink(missing_ok=True)
        say(f"{path}: DVC lock of process {pid}, which is gone, cleared")
    return None


def _rwlock_owner(path: Path, say: Say) -> str | None:
    """Return a living process of DVC's read-write lock; entries of dead or reused pids are removed."""
    try:
        data: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        written = path.stat().st_mtime
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        path.unlink(missing_ok=True)
        say(f"{path}: damaged DVC lock, cleared")
        return None
    entries = [*data.get("write", {}).values(), *(e for r in data.get("read", {}).values() for e in r)]
    alive = [e for e in entries if _runs(int(e["pid"]), before=written)]
    if alive:
        return f"process {alive[0]['pid']} ({alive[0]['cmd']})"
    if entries:
        path.unlink(missing_ok=True)
        said = ", ".join(sorted({str(e["pid"]) for e in entries}))
        say(f"{path}: DVC lock of process {said}, which is gone, cleared")
    return None


def _runs(pid: int, *, before: float | None = None) -> bool:
    """Return whether a process with this pid runs and, where given, began before that time (else the pid is reused)."""
    import psutil

    try:
        began = psutil.Process(pid).create_time()
    except psutil.Error:
        return False
    return before is None or began <= before + 1.0
