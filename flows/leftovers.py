"""What dead processes leave below the home: `doctor` names it, the next start clears it."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flows.durable import remove_dir
from flows.leases import Lease, short_lock

_FOREIGN = ("mlflow", "prefect", "dvc/cache")
"""Stores of other tools; nothing of ours is written below them."""
_OWN_RULES = (".git", ".dvc")
_LOCK_DEPTH = 3
_KEPT_SECONDS = 14 * 24 * 3600.0
"""For so long the rollouts of an evaluation are kept that was interrupted and that nobody went on with."""


def folders(home: Path) -> Iterator[Path]:
    """Yield the folders in which interrupted writes lie."""
    for base, names, files in os.walk(home):
        if any(n.startswith(".") and n.endswith(".tmp") for n in (*names, *files)):
            yield Path(base)
        at = Path(base).relative_to(home)
        names[:] = [n for n in names if not n.endswith(".tmp") and n not in _OWN_RULES and _ours(at / n)]


def lease_files(home: Path) -> list[Path]:
    """Return every lease and short lock, whoever holds it."""
    found: list[Path] = []
    for base, names, files in os.walk(home):
        at = Path(base).relative_to(home)
        found += [Path(base, n) for n in files if n in ("lease", "lock") or n.endswith(".lock")]
        deep = len(at.parts) >= _LOCK_DEPTH - 1
        names[:] = [] if deep else [n for n in names if n not in _OWN_RULES and _ours(at / n)]
    return sorted(found)


def _ours(at: Path) -> bool:
    return at.as_posix() not in _FOREIGN


def served(home: Path) -> Iterator[Path]:
    """Yield folders of weights for servers whose node is gone: of servers of others, and of ours that never started."""
    for folder in (*home.glob("served/[!.]*"), *home.glob("model-*")):
        recorded = (home / "services" / f"{folder.name}.json").exists()  # then they go with the server
        if folder.is_dir() and not recorded and not Lease(_lease_of(folder)).held_elsewhere:
            yield folder


def remove_served(folder: Path) -> bool:
    """Remove such a folder, unless a node holds it by now; return whether it was there."""
    lease = Lease(_lease_of(folder))
    lease.path.parent.mkdir(parents=True, exist_ok=True)
    return _remove_free(folder, lease)


def begun(home: Path) -> Path:
    """Return the folder that has one for each evaluation of the command line that is not whole yet."""
    return home / "evaluations" / "begun"


def begun_lock(home: Path) -> contextlib.AbstractContextManager[None]:
    """Return the lock under which such a folder is made and leased, or removed, so that nobody leases one that goes."""
    return short_lock(begun(home).with_suffix(".lock"))


def evaluations(home: Path) -> Iterator[Path]:
    """Yield folders of interrupted evaluations that are of no use: the same was made since, or nobody went on for two weeks."""
    for folder in sorted(begun(home).glob("[!.]*")):
        if not Lease(folder / "lease").held_elsewhere and _of_no_use(folder):
            yield folder


def _of_no_use(folder: Path) -> bool:
    about = folder / "about.json"
    with contextlib.suppress(FileNotFoundError):  # it says no result, or whoever ends it removes it now
        if time.time() - max(p.stat().st_mtime for p in (folder, *folder.iterdir())) > _KEPT_SECONDS:
            return True
        result = Path(json.loads(about.read_text(encoding="utf-8"))["result"])
        return (result / "metrics.json").stat().st_mtime >= about.stat().st_mtime
    return False


def remove_evaluation(folder: Path) -> bool:
    """Remove such a folder, unless somebody goes on with it by now; return whether it was there."""
    with begun_lock(folder.parents[2]):
        return _remove_free(folder, Lease(folder / "lease"))


def _remove_free(folder: Path, lease: Lease) -> bool:
    """Remove a folder that is there and that nobody holds; return whether it was so."""
    if not folder.is_dir() or not lease.try_acquire():
        return False
    try:
        remove_dir(folder)
    finally:
        lease.release()
    return True


def _lease_of(folder: Path) -> Path:
    own = folder.parent.name != "served"
    return folder.parent / "services" / f"{folder.name}.lock" if own else folder / "lease"
