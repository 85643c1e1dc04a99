"""Checkpoints: safetensors and JSON under a manifest of digests; never loaded unchecked, never the last one removed."""

import hashlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specs.errors import StateError
from tasks.files import (
    disk_error,
    list_tree,
    move,
    remove_dir,
    remove_temporaries,
    replace_dir,
    sha256_file,
    temporary,
    write_json,
)

KEEP = 2
"""Checkpoints that stay: the newest and the one before it."""
SHARE_OF_TIME = 0.1
"""Most of the wall time that `Pace` lets saving take."""
_TENSORS, _DATA, _MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved at a step."""

    step: int
    tensors: dict[str, Tensor]
    data: dict[str, Any]


class Checkpointer:
    """The checkpoints of one node. `identity` says whose they are; those of another are neither used nor removed."""

    def __init__(self, folder: Path, identity: str = "") -> None:
        self._folder = folder
        self._identity = identity
        self.damaged: list[str] = []
        """Sentences about checkpoints that were set aside."""
        self.foreign: list[str] = []
        """Names of checkpoints of another identity that were passed over."""

    def save(self, step: int, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Write the checkpoint of a step, whole or not at all, then remove all but the newest two.

        Raises StateError where the disk is full, with the bytes needed; earlier checkpoints stay as they were.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(self._folder)
        final = self._folder / _name(step)
        aside = temporary(final)
        need = sum(t.numel() * t.element_size() for t in tensors.values())
        try:
            aside.mkdir()
            save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, aside / _TENSORS)
            write_json(aside / _DATA, data)
            entries = {e.path: {"size": e.size, "sha256": e.sha256} for e in list_tree(aside)}
            manifest = {"step": step, "identity": self._identity, "files": entries}
            write_json(aside / _MANIFEST, manifest | {"sha256": _self_digest(manifest)})
            replace_dir(aside, final)
        except (OSError, safetensors.SafetensorError) as e:
            shutil.rmtree(aside, ignore_errors=True)
            raise disk_error(e, final, need) if isinstance(e, OSError) else _unwritten(final, need, e) from e
        except StateError:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._retire(final)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint whose digests hold; None where none was ever made.

        A damaged one is set aside and named in `damaged`. Raises StateError where only damaged ones are left.
        """
        for path in self._own():
            problem = _problem(path)
            if problem is None:
                tensors = load_file(path / _TENSORS)
                data = json.loads((path / _DATA).read_text(encoding="utf-8"))
                return Checkpoint(_step(path), tensors, data)
            self._set_aside(path, problem)
        aside = sorted(p.name for p in self._folder.glob("damaged-*"))
        if aside:
            raise StateError(
                f"{self._folder}: every checkpoint is damaged ({', '.join(aside)}); training does not start over "
                "without being asked: put a good copy back, or remove these folders to start the stage anew"
            )
        return None

    def remove(self) -> None:
        """Remove this identity's checkpoints: the stage is finished."""
        for path in self._own():
            remove_dir(path)

    def _own(self) -> list[Path]:
        """Return this identity's checkpoints, newest first; one whose manifest cannot be read counts as own."""
        found: list[Path] = []
        for path in sorted(self._folder.glob("step-*"), key=_step, reverse=True):
            identity = _identity(path)
            if identity is None or identity == self._identity:
                found.append(path)
            elif path.name not in self.foreign:
                self.foreign.append(path.name)
        return found

    def _set_aside(self, path: Path, problem: str) -> None:
        target = path.with_name(f"damaged-{path.name}")
        remove_dir(target)
        move(path, target)
        self.damaged.append(f"checkpoint {path.name} is damaged ({problem}) and was set aside as {target.name}")

    def _retire(self, newest: Path) -> None:
        """Remove all but the newest two, after the newest was read back and found whole."""
        problem = _problem(newest)
        if problem is not None:
            self._set_aside(newest, problem)
            raise StateError(f"{newest}: what was just written cannot be read back ({problem}); look at the disk")
        for path in self._own()[KEEP:]:
            remove_dir(path)


class Pace:
    """Says when a checkpoint is due: after `seconds`, and never so often that saving takes a tenth of the time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()
        self._cost = 0.0

    def due(self) -> bool:
        """Return whether it is time."""
        return time.monotonic() - self._last >= max(self._seconds, self._cost / SHARE_OF_TIME)

    def saved(self, seconds: float) -> None:
        """Take note that a save has just ended and how long it took."""
        self._last, self._cost = time.monotonic(), seconds


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _step(path: Path) -> int:
    tail = path.name.removeprefix("step-")
    return int(tail) if tail.isdigit() else -1


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.pop("sha256", None) != _self_digest(data):
        return None
    return cast(dict[str, Any], data)


def _self_digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _identity(path: Path) -> str | None:
    manifest = _manifest(path)
    return None if manifest is None else str(manifest.get("identity"))


def _problem(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None."""
    manifest = _manifest(path)
    if manifest is None or not isinstance(manifest.get("files"), dict):
        return f"no readable {_MANIFEST}"
    if manifest.get("step") != _step(path):
        return f"its manifest speaks of step {manifest.get('step')}"
    files = cast(dict[str, Any], manifest["files"])
    for name in (_TENSORS, _DATA):
        entry, file = files.get(name), path / name
        if not isinstance(entry, dict) or not file.is_file():
            return f"{name} is missing"
        size = file.stat().st_size
        if size != entry.get("size"):
            return f"{name} has {size} bytes, expected {entry.get('size')}"
        if sha256_file(file) != entry.get("sha256"):
            return f"{name} does not match its digest"
    return None


def _unwritten(path: Path, need: int, error: Exception) -> StateError:
    return StateError(f"cannot write {path} ({need} bytes needed): {error}; free space there and run again")


def tensor_digest(tensors: dict[str, Tensor]) -> str:
    """Return a hex sha256 over names, shapes and bytes: equal weights give equal digests."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
