"""Durable primitives: whole or not at all, torn tails cut, full disks named."""

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from specs.errors import StateError
from tasks.files import (
    COUNT_VARIABLE,
    FAULT_VARIABLE,
    Ledger,
    digest_tree,
    move,
    remove_dir,
    remove_temporaries,
    replace_dir,
    sha256_file,
    temporaries,
    write_dir,
    write_durable,
    write_json,
    write_quick,
)


def _fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, fault)
    monkeypatch.setenv(COUNT_VARIABLE, str(tmp_path / "count"))


def test_a_written_file_is_the_new_one_and_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "a.json"
    write_durable(path, b"old")
    write_durable(path, lambda f: f.write(b"new"))
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("point", ["before_write", "after_write", "after_flush"])
def test_a_disk_that_is_full_keeps_the_old_file_and_names_path_and_bytes(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.json"
    write_durable(path, b"old")
    _fault(monkeypatch, tmp_path, f"{point}:1:enospc")
    with pytest.raises(StateError, match=r"disk full: cannot write .*a\.json \(9 bytes needed\)"):
        write_durable(path, b"newer one")
    assert path.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*.tmp"))


def test_other_disk_errors_say_what_the_system_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _fault(monkeypatch, tmp_path, "after_write:1:eio")
    with pytest.raises(StateError, match=os.strerror(errno.EIO)):
        write_durable(tmp_path / "a", b"x")


def test_json_is_strict_and_sorted(tmp_path: Path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [2]})
    assert list(json.loads((tmp_path / "a.json").read_text())) == ["a", "b"]
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"b": float("nan")})


def test_a_folder_replaces_another_in_one_step(tmp_path: Path):
    final, aside = tmp_path / "final", tmp_path / "aside"
    for folder, text in ((final, "old"), (aside, "new")):
        folder.mkdir()
        (folder / "f").write_text(text)
    replace_dir(aside, final)
    assert (final / "f").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["final"]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    final = tmp_path / "final"
    assert write_dir(final, lambda aside: (aside / "f").write_text("old")) == 3

    def broken(aside: Path) -> None:
        (aside / "f").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_dir(final, broken)
    _fault(monkeypatch, tmp_path, "after_flush:1:enospc")
    with pytest.raises(StateError, match="disk full"):
        write_dir(final, lambda aside: (aside / "f").write_text("new"))
    assert (final / "f").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["count", "final"]


def test_a_folder_that_is_being_removed_is_never_half_there(tmp_path: Path):
    folder = tmp_path / "step-5"
    folder.mkdir()
    (folder / "a").write_text("")
    code = f"from pathlib import Path; from tasks.files import remove_dir; remove_dir(Path({str(folder)!r}))"
    env = {**os.environ, FAULT_VARIABLE: "mid_remove:1:kill"}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == -9
    assert not folder.exists()
    assert len(temporaries(tmp_path)) == 1
    assert remove_temporaries(tmp_path) == 1
    remove_dir(folder)  # gone already
    assert list(tmp_path.iterdir()) == []


def test_what_is_moved_or_told_is_whole(tmp_path: Path):
    write_quick(tmp_path / "a", "1")
    write_quick(tmp_path / "a", "2")
    (tmp_path / "aside").mkdir()
    move(tmp_path / "a", tmp_path / "aside" / "b")
    assert (tmp_path / "aside" / "b").read_text() == "2"
    with pytest.raises(StateError, match="No such file"):
        move(tmp_path / "a", tmp_path / "c")
    assert [p.name for p in tmp_path.iterdir()] == ["aside"]


def test_records_by_key_are_kept_once_and_refused_where_they_differ(tmp_path: Path):
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.append([{"id": 1, "x": 2}, {"id": 2}, {"x": 2, "id": 1}])
    assert list(ledger.keyed("id")) == [(1,), (2,)]
    assert ledger.repeated == 1
    ledger.append([{"id": 2, "x": 3}])
    with pytest.raises(StateError, match=r"l\.jsonl: lines 2 and 4 both hold \(2,\) and differ"):
        Ledger(ledger.path).keyed("id")


def test_digests_count_names_and_bytes_and_leave_notes_out(tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "a").write_text("1")
    first = digest_tree(tmp_path)
    (tmp_path / "notes" / "time").write_text("now")
    assert digest_tree(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    assert digest_tree(tmp_path) != first
    assert sha256_file(tmp_path / "b") == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"


def test_links_are_no_outputs(tmp_path: Path):
    (tmp_path / "a").symlink_to("/etc/hostname")
    with pytest.raises(StateError, match="plain files only"):
        digest_tree(tmp_path)


@pytest.mark.parametrize("cut", [1, 54, 319])
def test_a_torn_tail_is_counted_never_read_and_cut_before_appending(cut: int, tmp_path: Path):
    ledger = Ledger(tmp_path / "rollouts.jsonl")
    ledger.append([{"id": i, "padding": "x" * 290} for i in range(3)])
    whole = ledger.path.read_bytes()
    size = len(whole) // 3
    ledger.path.write_bytes(whole[: 2 * size + min(cut, size - 1)])
    reader = Ledger(ledger.path)
    assert [r["id"] for r in reader] == [0, 1]
    assert reader.torn == min(cut, size - 1)
    writer = Ledger(ledger.path)
    writer.append([{"id": 2}])
    assert writer.torn == min(cut, size - 1)
    assert [json.loads(line)["id"] for line in ledger.path.read_text().splitlines()] == [0, 1, 2]


def test_a_damaged_record_in_the_middle_is_refused_with_its_line(tmp_path: Path):
    path = tmp_path / "l.jsonl"
    path.write_text('{"id": 1}\n{"id": \n{"id": 3}\n')
    with pytest.raises(StateError, match=r"l\.jsonl:2: found a damaged record"):
        list(Ledger(path))


def test_an_append_that_fails_half_way_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.append([{"id": 1}])
    _fault(monkeypatch, tmp_path, "mid_append:1:enospc")
    with pytest.raises(StateError, match="disk full"):
        ledger.append([{"id": 2}])
    monkeypatch.delenv(FAULT_VARIABLE)
    ledger.append([{"id": 3}])
    assert [r["id"] for r in Ledger(ledger.path)] == [1, 3]


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path):
    code = (
        "from tasks.files import Ledger\nfrom pathlib import Path\n"
        f"Ledger(Path({str(tmp_path / 'l')!r})).append([{{'x': 'y' * 5000}}])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert "would pass the file-size limit" in found.stderr
    assert (tmp_path / "l").read_bytes() == b""


def test_temporaries_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".a.{dead.pid}.1.tmp").write_text("")
    (tmp_path / f".b.{os.getppid()}.1.tmp").write_text("")
    assert remove_temporaries(tmp_path) == 1
    assert [p.name for p in tmp_path.iterdir()] == [f".b.{os.getppid()}.1.tmp"]


def test_a_holder_of_the_folder_clears_what_any_writer_left(tmp_path: Path):
    left = tmp_path / f".receipt.json.{os.getppid()}.1.tmp"  # its pid lives, as one that is reused does
    left.touch()
    assert remove_temporaries(tmp_path) == 0
    assert remove_temporaries(tmp_path, ours=True) == 1
    assert not left.exists()
