"""What dead processes leave below the home: `doctor` names it, the next start clears it."""

import os
from collections.abc import Iterator
from pathlib import Path

from flows.durable import remove_dir
from flows.leases import Lease

_FOREIGN = ("mlflow", "prefect", "dvc/cache")
"""Stores of other tools; nothing of ours is written below them."""
_OWN_RULES = (".git", ".dvc")
_LOCK_DEPTH = 3


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
