"""Files that survive a kill: write aside, flush, rename, flush the folder; digests; append-only ledgers.

The only module that renames, replaces or flushes anything.
"""

import ctypes
import errno
import hashlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from specs.errors import StateError
from tasks.faults import COUNT_VARIABLE, DRIVER_VARIABLE, FAULT_VARIABLE, fault_point
from tasks.processes import pid_is_free

__all__ = [
    "COUNT_VARIABLE", "DRIVER_VARIABLE", "FAULT_VARIABLE", "FileEntry", "Ledger", "copy_tree", "digest_entries", "digest_tree",
    "disk_error", "fault_point", "fsync_dir", "list_tree", "move", "remove_dir", "remove_temporaries", "replace_dir",
    "sha256_file", "sync_tree", "temporaries", "temporary", "write_dir", "write_durable", "write_json", "write_quick",
]  # fmt: skip

T = TypeVar("T")
_BLOCK = 1 << 20


def disk_error(error: OSError, path: Path, size: int | None = None) -> StateError:
    """Return what a person is told when a write to `path` of `size` bytes failed."""
    need = f" ({size} bytes needed)" if size is not None else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StateError(f"disk full: cannot write {path}{need}; free space there and run the same command again")
    if error.errno == errno.EFBIG:
        return StateError(
            f"disk full: {path} would pass the file-size limit of this process{need}; raise it (`ulimit -f`) "
            "and run the same command again"
        )
    return StateError(f"cannot write {path}{need}: {error.strerror}; mend it and run the same command again")


def fsync_dir(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary(path: Path) -> Path:
    """Return a name beside `path` that no reader takes for a result; `remove_temporaries` clears what a kill left."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")


def temporaries(folder: Path, *, ours: bool = False) -> list[Path]:
    """Return what interrupted writes left in `folder` (not below it); what a living process writes is left out."""
    return sorted(p for p in folder.glob(".*.tmp") if ours or _owner_is_gone(p))


def remove_temporaries(folder: Path, *, ours: bool = False) -> int:
    """Remove what an interrupted write left in `folder` (not below it); return how many.

    `ours`: the caller holds the folder's lease, so nobody else writes there, whoever has the writer's pid by now.
    """
    left = temporaries(folder, ours=ours)
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return len(left)


def _owner_is_gone(path: Path) -> bool:
    parts = path.name.split(".")
    if len(parts) < 4 or not parts[-3].isdigit():
        return False
    pid = int(parts[-3])
    return pid == os.getpid() or pid_is_free(pid)


def write_durable(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Put `content` at `path`, whole or not at all. StateError (disk full, with the bytes needed) where it cannot."""
    if isinstance(content, str):
        content = content.encode()
    size = len(content) if isinstance(content, bytes) else None
    aside = temporary(path)
    try:
        fault_point("before_write")
        with aside.open("wb") as f:
            if isinstance(content, bytes):
                f.write(content)
            else:
                content(f)
            f.flush()
            fault_point("after_write")
            os.fsync(f.fileno())
        fault_point("after_flush")
        aside.replace(path)
        fault_point("after_rename")
        fsync_dir(path.parent)
        fault_point("after_commit")
    except OSError as e:
        aside.unlink(missing_ok=True)
        raise disk_error(e, path, size) from e


def write_json(path: Path, data: Any) -> None:
    """Write strict JSON durably, keys sorted. ValueError for a number that is not finite."""
    write_durable(path, json.dumps(data, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_quick(path: Path, content: str | Callable[[Path], object]) -> None:
    """Put `content` at `path` whole or not at all, without waiting for the disk: for what is told, not kept.

    A function is given the name under which it writes the file.
    """
    aside = temporary(path)
    try:
        if callable(content):
            content(aside)
        else:
            aside.write_text(content, encoding="utf-8")
        aside.replace(path)
    except OSError as e:
        aside.unlink(missing_ok=True)
        raise disk_error(e, path, 0 if callable(content) else len(content)) from e


def sync_tree(folder: Path) -> None:
    """Flush every file and folder at and below `folder`."""
    for base, _, names in os.walk(folder):
        for name in names:
            fd = os.open(Path(base, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fsync_dir(Path(base))


def replace_dir(aside: Path, final: Path) -> None:
    """Make the finished folder `aside` appear as `final`, flushed, in one rename; an old `final` goes after it."""
    try:
        sync_tree(aside)
        fault_point("after_flush")
        if not final.exists():
            aside.rename(final)
        elif _exchange(aside, final):
            shutil.rmtree(aside)
        else:
            shutil.rmtree(final)
            aside.rename(final)
        fault_point("after_rename")
        fsync_dir(final.parent)
        fault_point("after_commit")
    except OSError as e:
        raise disk_error(e, final) from e


def write_dir(final: Path, fill: Callable[[Path], T]) -> T:
    """Have `fill` write a folder aside and make it appear as `final`, whole and flushed; nothing stays of one that fails."""
    aside = temporary(final)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        done = fill(aside)
        replace_dir(aside, final)
    except OSError as e:
        raise disk_error(e, final) from e
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return done


def copy_tree(source: Path, target: Path, *, link: bool = False, leave_out: str = "") -> None:
    """Copy a folder to where nothing counts yet, without names like `leave_out`; `link` shares files where it can."""
    ignore = shutil.ignore_patterns(leave_out) if leave_out else None
    copy = _link_or_copy if link else shutil.copy2
    shutil.copytree(source, target, copy_function=copy, ignore=ignore, dirs_exist_ok=True)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
    return target


def move(source: Path, target: Path) -> None:
    """Rename a file or a folder and flush the folders on both sides."""
    try:
        source.rename(target)
        fault_point("after_move")
        fsync_dir(target.parent)
        if source.parent != target.parent:
            fsync_dir(source.parent)
    except OSError as e:
        raise disk_error(e, target) from e


def remove_dir(folder: Path) -> None:
    """Remove a folder so that a kill never leaves half of it under its name; one that is not there is removed already."""
    aside = temporary(folder)
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    fault_point("mid_remove")
    shutil.rmtree(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step where the system can (Linux); return whether it did."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    at_cwd, exchange = -100, 2
    return call is not None and call(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an output: path below its folder with `/`, size in bytes, hex sha256."""

    path: str
    size: int
    sha256: str


def list_tree(folder: Path, *, exclude: str = "notes/") -> list[FileEntry]:
    """Return every file below `folder` in order of path, without those below `exclude`. StateError for a link."""
    entries: list[FileEntry] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(exclude) or path.is_dir():
            continue
        if path.is_symlink() or not path.is_file():
            raise StateError(f"{path}: found something that is not a plain file; outputs hold plain files only")
        entries.append(FileEntry(name, path.stat().st_size, sha256_file(path)))
    return entries


def digest_entries(entries: Iterable[FileEntry]) -> str:
    """Return one hex sha256 over paths, sizes and contents, whatever the order of `entries`."""
    total = hashlib.sha256()
    for e in sorted(entries, key=lambda e: e.path):
        total.update(f"{e.sha256} {e.size} {e.path}\n".encode())
    return total.hexdigest()


def digest_tree(folder: Path, *, exclude: str = "notes/") -> str:
    """Return the digest of everything below `folder` that `exclude` does not begin."""
    return digest_entries(list_tree(folder, exclude=exclude))


_CRC = b', "~crc": "%08x"}\n'


def _crc_holds(line: bytes) -> bool:
    """Return whether a line of a checked ledger ends with the CRC of what is before it."""
    return line.endswith(_CRC % zlib.crc32(line[: -len(_CRC % 0)]))


class Ledger:
    """Append-only JSON lines that survive a kill: a torn tail is counted, never read, and cut before appending.

    `checked`: each line ends with the CRC-32 of what is before it; one that does not match is left out and counted.
    """

    def __init__(
        self, path: Path, *, remedy: str = "move the file away to do its node again", checked: bool = False
    ) -> None:
        self.path = path
        self._remedy = remedy
        self._checked = checked
        self.damaged = 0
        """Whole lines of a checked ledger that reading left out."""
        self.torn = 0
        """Bytes of a torn tail that reading met or appending cut."""
        self.repeated = 0
        """Records that `keyed` met a second time."""
        self._repaired = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield whole records. StateError for a damaged record that is not the tail, unless the ledger is checked."""
        self.damaged = 0
        if not self.path.exists():
            return
        with self.path.open("rb") as f:
            for number, line in enumerate(f, 1):
                if not line.endswith(b"\n"):
                    self.torn = len(line)
                    return
                if self._checked and not _crc_holds(line):
                    self.damaged += 1
                    continue
                yield self._parse(line, number)

    def keyed(self, *names: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the records by the values under `names`; one that was appended twice is kept once and counted.

        StateError, with both lines, where two records have one key and differ.
        """
        found: dict[tuple[Any, ...], tuple[int, dict[str, Any]]] = {}
        self.repeated = 0
        for number, record in enumerate(self, 1):
            key = tuple(record.get(n) for n in names)
            first, known = found.setdefault(key, (number, record))
            if known != record:
                raise StateError(
                    f"{self.path}: lines {first} and {number} both hold {key} and differ, expected one record a key; "
                    "keep the right one, or move the file away to do its node again"
                )
            self.repeated += first != number
        return {key: record for key, (_, record) in found.items()}

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError as e:
            raise StateError(
                f"{self.path}:{number}: found a damaged record, expected one JSON object a line; {self._remedy}"
            ) from e
        if not isinstance(record, dict):
            raise StateError(
                f"{self.path}:{number}: found {type(record).__name__}, expected a JSON object; {self._remedy}"
            )
        return cast(dict[str, Any], record)

    def _repair(self) -> None:
        if self._repaired or not self.path.exists():
            self._repaired = True
            return
        with self.path.open("r+b") as f:
            end = f.seek(0, os.SEEK_END)
            keep = end
            while keep > 0:
                start = max(0, keep - _BLOCK)
                f.seek(start)
                cut = f.read(keep - start).rfind(b"\n")
                if cut >= 0:
                    keep = start + cut + 1
                    break
                keep = start
            if keep < end:
                self.torn = end - keep
                f.truncate(keep)
                os.fsync(f.fileno())
        self._repaired = True

    def append(self, records: Iterable[dict[str, Any]], *, durable: bool = True) -> None:
        """Append records in one write and flush them to disk. StateError where the disk is full; nothing is torn."""
        data = b"".join(self._line(r) for r in records)
        with self._lock:
            self._repair()
            try:
                with self.path.open("ab", buffering=0) as f:
                    before = f.tell()
                    try:
                        self._write(f, data, durable=durable)
                    except OSError:
                        f.truncate(before)
                        raise
                if durable and before == 0:
                    fsync_dir(self.path.parent)
            except OSError as e:
                raise disk_error(e, self.path, len(data)) from e

    def _line(self, record: dict[str, Any]) -> bytes:
        text = json.dumps(record, sort_keys=True, allow_nan=self._checked).encode()  # what is checked is read here only
        return text[:-1] + _CRC % zlib.crc32(text[:-1]) if self._checked else text + b"\n"

    @staticmethod
    def _write(f: Any, data: bytes, *, durable: bool) -> None:
        fault_point("before_append")
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            rest = part
            while rest:
                rest = rest[f.write(rest) :]
            fault_point("mid_append")
        if durable:
            os.fsync(f.fileno())
        fault_point("after_append")
