"""Data versions on the branch `data`: the user's checkout stays as it is, nothing half-written is recorded."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows import datasets
from flows.checkup import kept
from flows.cli import main
from flows.databranch import wait_for_dvc, writing
from flows.datasets import Item
from flows.leases import Lease
from flows.state import State
from specs.errors import ServiceError, StateError, UsageError
from tasks.files import list_tree


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone: a git repository without identity, and without any settings of a user."""
    empty = tmp_path / "nobody"
    empty.mkdir()
    monkeypatch.setenv("HOME", str(empty))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(empty))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "mine.txt").write_text("mine")
    git(root, "add", "mine.txt")
    State(root / ".tutelage").prepare()
    return root


def item(home: Path, name: str, text: str) -> Item:
    out = home / "nodes" / f"{name}-{len(text)}" / "out"
    (out / "part").mkdir(parents=True, exist_ok=True)
    (out / "records.jsonl").write_text(text)
    (out / "part" / "summary.json").write_text("{}")
    return Item(f"p/{name}", out, list_tree(out), {"program": "p", "node": f"data.{name}"})


def test_versions_are_commits_and_the_checkout_stays_as_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = project / ".tutelage"
    before = git(project, "status", "--porcelain", "--branch")
    said: list[str] = []
    first = datasets.publish(
        home, [item(home, "demos", "one\n"), item(home, "train", "t\n")], "p: data", say=said.append
    )
    assert [v.version for v in first] == [1, 1]
    assert first[0].commit == first[1].commit
    assert datasets.publish(home, [item(home, "demos", "one\n")], "again", say=said.append) == first[:1]
    (second,) = datasets.publish(home, [item(home, "demos", "two, more\n")], "p: data", say=said.append)
    assert second.version == 2
    assert said == []
    assert git(project, "status", "--porcelain", "--branch") == before
    assert git(project, "log", "--format=%s", "data").splitlines() == [
        "p: data",
        "p: data",
        "Data versions of tutelage",
    ]
    assert [(v.name, v.version) for v in datasets.latest(home)] == [("p/demos", 2), ("p/train", 1)]
    assert datasets.find(home, "demos@v1") == first[0]
    assert datasets.find(home, f"p/demos@{second.commit[:8]}") == second
    with pytest.raises(UsageError, match="there is: p/demos, p/train"):
        datasets.find(home, "demo")
    with pytest.raises(UsageError, match=r"there is: v2 .*, v1"):
        datasets.find(home, "demos@v3")
    _read_as_dvc_does(project, first[0].commit, second.commit, monkeypatch)


def _read_as_dvc_does(project: Path, first: str, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import dvc.api

    monkeypatch.chdir(project)
    assert dvc.api.read("p/demos/records.jsonl", rev=first) == "one\n"
    assert dvc.api.read("p/demos/records.jsonl", rev=second) == "two, more\n"


def test_nothing_of_the_machine_is_committed_and_remotes_that_were_added_stay(project: Path) -> None:
    home = project / ".tutelage"
    datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    worktree = home / "dvc" / "worktree"
    for file in git(project, "ls-tree", "-r", "--name-only", "data").splitlines():
        assert str(project) not in git(project, "show", f"data:{file}"), file
    for arguments in (
        ["remote", "add", "-d", "store", "https://store.invalid/data"],
        ["remote", "modify", "--local", "store", "password", "x"],
    ):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=worktree, check=True, capture_output=True)
    datasets.publish(home, [item(home, "demos", "two\n")], "m", say=print)
    shown = subprocess.run(
        [sys.executable, "-m", "dvc", "config", "-l"], cwd=worktree, check=True, capture_output=True, text=True
    )
    lines = shown.stdout.splitlines()
    assert {"core.remote=store", "remote.store.url=https://store.invalid/data", "remote.store.password=x"} <= set(lines)
    assert "password" not in git(project, "show", "data:.dvc/config")
    assert datasets.repository_to_name(home) is None


def test_dvc_settings_of_the_users_own_are_left_alone(project: Path) -> None:
    import dvc.api

    (project / ".dvc").mkdir()
    (project / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    home = project / ".tutelage"
    (made,) = datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    assert [p.name for p in (project / ".dvc").iterdir()] == ["config"]
    repo = datasets.repository_to_name(home)
    assert repo is not None
    assert dvc.api.read("p/demos/records.jsonl", repo=str(repo), rev=made.commit) == "one\n"


def test_a_damaged_or_missing_object_is_named_and_comes_back(project: Path) -> None:
    home = project / ".tutelage"
    (made,) = datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    target = project / "copy"
    assert datasets.checkout(home, made, target, say=print) == 2
    assert (target / "records.jsonl").read_text() == "one\n"
    with pytest.raises(UsageError, match="not empty"):
        datasets.checkout(home, made, target, say=print)
    objects = home / "dvc" / "cache" / "files" / "md5"
    listing = json.loads((objects / made.md5[:2] / made.md5[2:]).read_text())
    md5 = next(e["md5"] for e in listing if e["relpath"] == "records.jsonl")
    one = objects / md5[:2] / md5[2:]
    one.chmod(0o644)
    one.write_text("0ne\n")
    (project / "copy2").mkdir()
    before = sorted(project.iterdir())
    with pytest.raises(StateError, match="is damaged; delete it and run p again"):
        datasets.checkout(home, made, project / "copy2", say=print)
    one.unlink()
    with pytest.raises(StateError, match=r"p/demos v1: .* is missing, and no DVC remote is named"):
        datasets.checkout(home, made, project / "copy3", say=print)
    assert sorted(project.iterdir()) == before
    assert list((project / "copy2").iterdir()) == []
    said: list[str] = []
    assert datasets.publish(home, [item(home, "demos", "one\n")], "m", say=said.append) == [made]
    assert "are back in the cache" in said[0]
    assert datasets.checkout(home, made, project / "copy4", say=print) == 2


def test_what_differs_from_its_receipt_is_never_a_version(project: Path) -> None:
    home = project / ".tutelage"
    datasets.publish(home, [item(home, "train", "t\n")], "m", say=print)
    bad = item(home, "demos", "one\n")
    (bad.folder / "records.jsonl").write_text("0ne\n")
    with pytest.raises(StateError, match="differs from its receipt"):
        datasets.publish(home, [bad], "m", say=print)
    assert [v.name for v in datasets.latest(home)] == ["p/train"]


def test_without_git_the_versions_stay_local_and_that_is_said_once(tmp_path: Path) -> None:
    home = tmp_path / ".tutelage"
    State(home).prepare()
    said: list[str] = []
    for text in ("one\n", "two, more\n"):
        datasets.publish(home, [item(home, "demos", text)], "m", say=said.append)
    assert len(said) == 1
    assert "no git repository" in said[0]
    assert datasets.checkout(home, datasets.find(home, "demos@1"), tmp_path / "copy", say=print) == 2


def test_versions_of_before_git_init_stay_and_the_branch_begins_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / ".tutelage"
    State(home).prepare()
    datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    git(tmp_path, "init", "-q", "-b", "main")
    monkeypatch.chdir(tmp_path)
    assert command(capsys, "list")[0]["name"] == "p/demos"
    said: list[str] = []
    for text in ("two, more\n", "three, the last\n"):
        datasets.publish(home, [item(home, "demos", text)], "m", say=said.append)
    assert [v["version"] for v in command(capsys, "show", "demos")] == [3, 2, 1]
    (told,) = said
    assert f"its branch data begins with the data versions of {home / 'dvc' / 'repo'}" in told
    command(capsys, "checkout", "demos@1", "copy")
    assert (tmp_path / "copy" / "records.jsonl").read_text() == "one\n"


def command(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Run `tutelage data` in the working directory and return what it printed."""
    capsys.readouterr()
    assert main(["data", *arguments, "--json"]) == code
    printed = capsys.readouterr()
    return json.loads(printed.out) if code == 0 else printed.err


@pytest.fixture
def clone(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another person's clone of a project with two versions, whose data are in a DVC remote, a local folder."""
    home = project / ".tutelage"
    git(project, "-c", "user.name=u", "-c", "user.email=u@localhost", "commit", "-q", "-m", "mine")
    datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    worktree = home / "dvc" / "worktree"
    dvc(worktree, "remote", "add", "-d", "store", str(tmp_path / "store"))
    dvc(worktree, "push")
    datasets.publish(home, [item(home, "demos", "two, more\n")], "m", say=print)
    dvc(worktree, "push")
    git(tmp_path, "init", "-q", "--bare", "origin.git")
    git(project, "push", "-q", str(tmp_path / "origin.git"), "main", "data")
    git(tmp_path, "clone", "-q", "-b", "main", "origin.git", "clone")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def dvc(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True)


def test_a_fresh_clone_lists_shows_and_checks_out_what_was_published_elsewhere(
    clone: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (listed,) = command(capsys, "list")
    assert (listed["name"], listed["version"]) == ("p/demos", 2)
    assert [v["version"] for v in command(capsys, "show", "demos")] == [2, 1]
    assert main(["data", "show", "demos@v1"]) == 0
    assert "data.demos" in capsys.readouterr().out
    assert git(clone, "branch", "--list").split() == ["*", "main"]
    assert not (clone / ".tutelage").exists()
    (found,) = kept.data_versions(clone / ".tutelage")
    assert (found.level, found.what) == ("ok", "branch origin/data, 3 commits")

    assert command(capsys, "checkout", "demos@v1", "one")["copied"] == 2
    assert main(["data", "checkout", "p/demos", "two"]) == 0
    assert "p/demos v2: 2 files in two" in capsys.readouterr().out
    assert [(clone / n / "records.jsonl").read_text() for n in ("one", "two")] == ["one\n", "two, more\n"]
    assert git(clone, "status", "--porcelain").split() == ["??", "one/", "??", "two/"]

    home = project / ".tutelage"
    datasets.publish(home, [item(home, "demos", "three, the last\n")], "m", say=print)
    git(project, "push", "-q", str(clone.parent / "origin.git"), "data")
    git(clone, "fetch", "-q")
    assert [v["version"] for v in command(capsys, "show", "demos")] == [3, 2, 1]
    told = command(capsys, "checkout", "demos", "three", code=5)
    assert "is missing, and the DVC remote has it neither; `dvc push` it" in told
    dvc(home / "dvc" / "worktree", "push")
    assert command(capsys, "checkout", "demos", "three")["version"] == 3
    own = clone / ".tutelage"
    (fourth,) = datasets.publish(own, [item(own, "demos", "and a fourth one\n")], "m", say=print)
    assert fourth.version == 4
    assert "remote = store" in git(clone, "show", "data:.dvc/config")


def test_a_clone_without_a_dvc_remote_says_what_is_missing(
    clone: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dvc(project / ".tutelage" / "dvc" / "worktree", "remote", "remove", "store")
    home = project / ".tutelage"
    datasets.publish(home, [item(home, "demos", "three, the last\n")], "m", say=print)
    git(project, "push", "-q", str(clone.parent / "origin.git"), "data")
    git(clone, "fetch", "-q")
    git(clone, "remote", "rename", "origin", "team")  # the branch of any remote is read
    told = command(capsys, "checkout", "demos", "three", code=5)
    assert "p/demos v3: " in told
    assert "is missing, and no DVC remote is named to fetch it from" in told
    assert [p.name for p in clone.iterdir() if p.name != ".git"] == ["mine.txt"]


def test_a_branch_called_data_that_is_not_ours_is_left_alone(project: Path) -> None:
    git(project, "-c", "user.name=u", "-c", "user.email=u@localhost", "commit", "-q", "-m", "mine")
    git(project, "branch", "data")
    home = project / ".tutelage"
    with pytest.raises(ServiceError, match="git branch -m data other"):
        datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    assert git(project, "log", "--format=%s", "data") == "mine\n"


def _sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])


def test_locks_of_the_dead_are_cleared_and_the_living_are_named(project: Path) -> None:
    home = project / ".tutelage"
    (made,) = datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    tmp = home / "dvc" / "worktree" / ".dvc" / "tmp"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alive = _sleeper()
    try:
        lock = {"write": {str(tmp / "x"): {"pid": gone.pid, "cmd": "dvc add"}}, "read": {}}
        (tmp / "rwlock").write_text(json.dumps(lock))
        (tmp / "lock").write_text(f" {gone.pid}\n")
        said: list[str] = []
        with writing(home, said.append, seconds=1.0) as branch:
            assert sum("cleared" in s for s in said) == 2
            lock["write"] = {str(tmp / "x"): {"pid": alive.pid, "cmd": "dvc add"}}
            (tmp / "rwlock").write_text(json.dumps(lock))
            with pytest.raises(StateError, match=f"locked by process {alive.pid} .dvc add."):
                wait_for_dvc(branch, said.append, seconds=0.3)
            os.utime(tmp / "rwlock", (time.time() - 3600, time.time() - 3600))  # written before that process began
            wait_for_dvc(branch, said.append, seconds=0.3)
    finally:
        alive.kill()
        alive.wait()
    assert datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print) == [made]


def test_one_publisher_at_a_time_and_the_owner_is_named(project: Path) -> None:
    home = project / ".tutelage"
    (home / "dvc").mkdir()
    lease = Lease(home / "dvc" / "lock")
    assert lease.try_acquire()
    with pytest.raises(StateError, match=f"written by process {os.getpid()} on"):
        datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print, seconds=0.3)
    lease.release()
    (made,) = datasets.publish(home, [item(home, "demos", "one\n")], "m", say=print)
    assert made.version == 1
