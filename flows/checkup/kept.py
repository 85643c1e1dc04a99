"""What the project keeps: nodes, records, registry, pools, databases, data versions, and what is not sent yet."""

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from flows import leftovers, looks, pools, registry
from flows.checkup.findings import Finding, ok
from flows.databranch import BRANCH, LOCAL, MARKER, existing, git
from flows.durable import Ledger, remove_temporaries, temporaries
from flows.leases import Lease
from flows.services import mlflow_database
from flows.state import State
from specs.errors import ServiceError, StateError


def nodes(state: State, *, contents: bool) -> Iterator[Finding]:
    """Compare every sealed node with its receipt, and name those that are half done."""
    sealed = unfinished = 0
    for folder in sorted((state.home / "nodes").glob("*")):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        known = len(state.damage)
        receipt = state.receipt(folder.name, deep=contents)
        for text in state.damage[known:]:
            yield Finding("outputs", "wrong", str(folder), text, "run the program again: only this node is done anew")
        if receipt is not None:
            sealed += 1
        elif len(state.damage) == known:
            unfinished += 1
            if not Lease(folder / "lease").held_elsewhere:
                yield _unfinished(state, folder)
    seen = "compared with their receipts" if contents else "of full size"
    yield ok("outputs", str(state.home / "nodes"), f"{sealed} nodes {seen}, {unfinished} unfinished")


def _unfinished(state: State, folder: Path) -> Finding:
    failure = state.failure(folder.name)
    if failure is not None:
        what = f"failed: {failure.get('text')}"
    elif (at := state.checkpoint_info(folder.name)) is not None:
        what = f"half done, its checkpoint {at[0]}/{at[1] or '?'} is kept"
    else:
        what = "begun and not ended"
    return Finding("nodes", "note", str(folder), what, "`tutelage resume` goes on; nothing half done is ever used")


def left_over(home: Path) -> Iterator[Finding]:
    """Find what interrupted writes left: files and folders that no reader takes for a result."""
    for folder in sorted(leftovers.folders(home)):
        if found := temporaries(folder):
            names = ", ".join(p.name for p in found[:3])
            yield Finding(
                "temporary", "note", str(folder), f"{len(found)} left by interrupted writes: {names}",
                "the next run clears it", partial(_remove, folder),
            )  # fmt: skip
    for folder in leftovers.served(home):
        yield Finding(
            "temporary", "note", str(folder), "weights for a server, left by a node that is gone",
            "the next run clears it", partial(leftovers.remove_served, folder),
        )  # fmt: skip
    for folder in leftovers.evaluations(home):
        yield Finding(
            "temporary", "note", str(folder), "rollouts of an interrupted evaluation that nobody goes on with",
            "the next run clears it", partial(leftovers.remove_evaluation, folder),
        )  # fmt: skip


def _remove(folder: Path) -> bool:
    return remove_temporaries(folder) > 0


def records(state: State) -> Iterator[Finding]:
    """Read the record and the plan of each program's last run, and the ledger of its gates' looks."""
    for path in sorted(state.home.glob("programs/*/last.json")):
        program, known = path.parent.name, len(state.damage)
        record = state.last(program)
        for text in state.damage[known:]:
            yield Finding("records", "wrong", str(path), text, "run the program again: a new record is written")
        if record is None:
            continue
        try:
            looks.read(state.home, program)
        except StateError as e:
            yield Finding("records", "wrong", str(looks.path_of(state.home, program)), str(e), "restore it from a copy")
        if state.plan(record.plan) is None:
            what = f"the plan of the last run ({record.plan[:12]}) is gone or damaged"
            yield Finding("records", "wrong", str(state.home / "plans"), what, f"run {record.file} again")
        if record.state == "crashed":
            what = f"{program}: its last run ({record.execution}) ended without a word"
            yield Finding("records", "note", str(path), what, f"`tutelage resume {record.file}`")
        else:
            yield ok("records", str(path), f"{program}: last run {record.execution} {record.state}")


def registries(home: Path) -> Iterator[Finding]:
    """Compare each registry with its folders."""
    for path in sorted((home / "registry").glob("*.json")):
        try:
            found = registry.load(home, path.stem)
        except StateError as e:
            yield Finding("registry", "wrong", str(path), str(e), "restore it from a copy")
            continue
        bad = False
        for version in found.versions:
            try:
                registry.checked_folder(home, version)
            except StateError as e:
                bad = True
                yield Finding(
                    "registry", "wrong", version.folder, str(e), "run the program again: it is registered anew"
                )
        for alias, number in found.aliases.items():
            if found.get(number) is None:
                bad = True
                what = f"{alias} names version {number}, which is not there"
                yield Finding(
                    "registry", "wrong", str(path), what, f"`tutelage promote {path.stem} VERSION --reason TEXT`"
                )
        known = {v.folder for v in found.versions}
        for folder in sorted(path.with_suffix("").glob("v*")):
            if folder.relative_to(home).as_posix() not in known:
                what = "a policy that the registry does not name: its registration was interrupted"
                yield Finding("registry", "note", str(folder), what, "the next registration takes its place")
        if not bad:
            yield ok("registry", str(path), f"{len(found.versions)} versions, {_aliases(found)}")


def _aliases(found: registry.Registry) -> str:
    return ", ".join(f"{a} v{n}" for a, n in found.aliases.items()) or "no alias"


def published_pools(home: Path) -> Iterator[Finding]:
    """Compare the newest version of each pool with its digest."""
    for program in pools.programs(home):
        for folder in sorted(p for p in (home / "pools" / program).glob("*") if p.is_dir()):
            try:
                newest = pools.newest(home, program, folder.name)
                rows = 0 if newest is None else len(pools.records(home, newest))
                yield ok("pools", str(folder), f"{rows} records")
            except (StateError, ValueError) as e:
                yield Finding("pools", "wrong", str(folder), str(e), "restore it from a copy")


def databases(home: Path) -> Iterator[Finding]:
    """See whether the databases of MLflow and Prefect can be read."""
    for name, path in (("mlflow", mlflow_database(home)), ("prefect", home / "prefect" / "prefect.db")):
        if not path.exists():
            continue
        problem = _sqlite_problem(path)
        if problem is None:
            yield ok("stores", str(path), f"the database of {name} can be read")
            continue
        locked = "locked" in problem
        do = "end the process that locks it" if locked else f"move it away: {name} begins a new one, runs stay on disk"
        yield Finding("stores", "note" if locked else "wrong", str(path), f"{name}: {problem}", do)


def _sqlite_problem(path: Path) -> str | None:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0) as db:
            said = str(db.execute("PRAGMA quick_check").fetchone()[0])
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        db.close()
    except sqlite3.Error as e:
        return str(e)
    if said != "ok":
        return said
    return None if tables else "holds no table"


def data_versions(home: Path) -> Iterator[Finding]:
    """See whether the branch of data versions and its worktree are as we left them."""
    try:
        branch = existing(home)
        if branch is None:
            return
        if not git(branch.worktree, "cat-file", "-t", f"{branch.reference}:{MARKER}", check=False):
            what = f"the branch {BRANCH!r} is not tutelage's"
            yield Finding("data", "wrong", str(branch.worktree), what, f"rename yours: `git branch -m {BRANCH} other`")
            return
        worktree = home / "dvc" / "worktree"
        linked = worktree.is_dir() and git(worktree, "rev-parse", "--git-dir", check=False)
        if branch.project is not None and branch.reference == LOCAL and not linked:
            what = "the worktree of data versions is gone or not linked any more"
            yield Finding("data", "note", str(worktree), what, "the next publication links it anew; no version is lost")
            return
        commits = git(branch.worktree, "rev-list", "--count", branch.reference, check=False)
        read = branch.reference.removeprefix("refs/heads/").removeprefix("refs/remotes/")
        yield ok("data", str(worktree if linked else branch.worktree), f"branch {read}, {commits} commits")
    except ServiceError as e:
        yield Finding("data", "wrong", str(home / "dvc"), str(e), "data versions wait until git can be used here")


def not_sent(home: Path) -> Iterator[Finding]:
    """Find executions that MLflow and DVC were not told wholly of."""
    begun = sorted(p.stem for p in (home / "executions").glob("*.jsonl"))
    path = home / "recorder" / "sent.jsonl"
    try:
        sent = {r["execution"] for r in Ledger(path) if r.get("what") == "done"}
    except (StateError, KeyError) as e:
        yield Finding(
            "sending", "note", str(path), f"damaged: {e}", "`tutelage data sync` sends everything again, once"
        )
        return
    left = [name for name in begun if name not in sent]
    if not left:
        yield ok("sending", str(path), f"{len(begun)} executions are sent to MLflow and DVC")
    elif Lease(home / "recorder" / "lock").held_elsewhere:
        yield ok("sending", str(path), f"{len(left)} executions are being sent")
    else:
        what = f"not wholly sent to MLflow and DVC: {', '.join(left[:3])}" + (
            f" and {len(left) - 3} more" if left[3:] else ""
        )
        yield Finding("sending", "note", str(path), what, "`tutelage data sync`, or the next run, sends the rest")
