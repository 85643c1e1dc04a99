"""Rollouts of steps that belong to a checkpoint: one folder a step, named with the digest of what is in it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from specs.records import Trajectory
from tasks.episodes.shards import read_shards, write_shards
from tasks.episodes.token_signals import TokenSignal, read_signals, write_signals
from tasks.files import digest_tree, remove_dir, remove_temporaries, replace_dir, temporary

_DIGITS = 16


class RolloutStore:
    """Parts of rollouts in a folder of checkpoints. A part is there whole and undamaged, or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.damaged: list[str] = []
        """Names of parts that were removed because their content had changed."""

    def write(self, name: str, trajectories: list[Trajectory], signals: Sequence[TokenSignal] | None = None) -> None:
        """Store a part, with what teachers said of its tokens where there are any. StateError where the disk is full."""
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(self._folder)
        self.remove(name)
        aside = temporary(self._folder / name)
        write_shards(aside, trajectories)
        if signals is not None:
            write_signals(aside, signals)
        replace_dir(aside, self._folder / f"{name}.{digest_tree(aside)[:_DIGITS]}")

    def read(self, name: str) -> list[Trajectory] | None:
        """Return the rollouts of a part; None where it is not there, or was damaged and therefore removed."""
        path = self._whole(name)
        return None if path is None else list(read_shards(path))

    def read_signals(self, name: str) -> list[TokenSignal] | None:
        """Return what teachers said of a part's tokens; None as above. StateError where it was stored without."""
        path = self._whole(name)
        return None if path is None else list(read_signals(path))

    def _whole(self, name: str) -> Path | None:
        for path in self._folder.glob(f"{name}.*"):
            if digest_tree(path)[:_DIGITS] == path.suffix[1:]:
                return path
            self.damaged.append(name)
            remove_dir(path)
        return None

    def remove(self, name: str) -> None:
        """Remove a part."""
        for path in self._folder.glob(f"{name}.*"):
            remove_dir(path)

    def names(self) -> Iterator[str]:
        """Yield the names of all parts, in order."""
        yield from sorted({p.name.rsplit(".", 1)[0] for p in self._folder.glob("*.*") if not p.name.startswith(".")})
