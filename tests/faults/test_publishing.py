"""Kills of a publication: no version is half there, and the next publication makes the one that was asked for, once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import datasets
from flows.databranch import existing
from tasks.files import FileEntry, list_tree

pytestmark = pytest.mark.slow
MOMENTS = 6
CODE = """
import sys
from pathlib import Path
from flows import datasets
from tasks.files import list_tree
home, *sources = map(Path, sys.argv[1:])
items = [datasets.Item(f"p/{s.name}", s, list_tree(s), {"program": "p"}) for s in sources]
datasets.publish(home, items, "made", say=lambda _: None)
"""


def _start(home: Path, sources: list[Path]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CODE, str(home), *map(str, sources)], start_new_session=True)


def _sources(folder: Path, number: int) -> list[Path]:
    found = [folder / str(number) / name for name in ("train", "golden")]
    for path in found:
        path.mkdir(parents=True)
        (path / "records.jsonl").write_text("".join(f'{{"id": {i}, "of": {number}}}\n' for i in range(2000)))
        (path / "more.json").write_text(f"[{number}]\n")
    return found


def _check(home: Path, tmp_path: Path, contents: dict[str, list[list[FileEntry]]]) -> int:
    """Assert that every version that can be seen holds what was published under its number; return how many."""
    branch = existing(home)
    if branch is None:
        return 0
    count = 0
    for name, made in contents.items():
        for version in datasets.versions_of(branch, name):
            target = tmp_path / "out" / f"{time.monotonic_ns()}"
            datasets.checkout(home, version, target, say=print)
            assert list_tree(target) == made[version.version - 1], f"{name} v{version.version}"
            count += 1
    return count


@pytest.mark.parametrize("group", [False, True], ids=["alone", "with what it started"])
def test_killed_while_it_publishes(group: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    home, kills = tmp_path / "home" / ".tutelage", 0
    contents: dict[str, list[list[FileEntry]]] = {"p/train": [], "p/golden": []}
    began = time.monotonic()
    assert _start(tmp_path / "measured" / ".tutelage", _sources(tmp_path, 0)).wait(60) == 0
    whole = time.monotonic() - began
    for number in range(1, MOMENTS + 1):
        sources = _sources(tmp_path, number)
        for source in sources:
            contents[f"p/{source.name}"].append(list_tree(source))
        process = _start(home, sources)
        time.sleep(whole * (0.3 + 0.7 * number / MOMENTS))  # imports take the first part
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        kills += process.wait(60) == -signal.SIGKILL
        assert _check(home, tmp_path, contents) in (2 * (number - 1), 2 * number)  # both sets or neither
        assert _start(home, sources).wait(60) == 0
        assert _check(home, tmp_path, contents) == 2 * number  # a number is never given twice
        assert not list(home.rglob("*.tmp"))
        branch = existing(home)
        assert branch is not None
        assert branch.git("status", "--porcelain") == ""
    assert kills >= MOMENTS // 2
