"""Processes: known from later ones, started alone, ended with all that they started, in bounded time."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tasks import processes
from tasks.processes import Child, Process, ask_to_end, end, pid_is_free, process_from, run, spawn, this_process

FAMILY = """
import os, signal, subprocess, sys, time
if {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({path!r} + ".new", "w").write(str(inner.pid)); os.rename({path!r} + ".new", {path!r})
time.sleep({seconds})
"""


def _wait(what: Path) -> int:
    until = time.monotonic() + 20
    while not what.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return int(what.read_text())


def _gone(pid: int) -> bool:
    until = time.monotonic() + 3
    while not (pid_is_free(pid) or not this_process(pid).alive):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def started() -> Iterator[list[Child]]:
    children: list[Child] = []
    yield children
    for child in children:
        end(child)


def _family(tmp_path: Path, started: list[Child], *, deaf: bool = False, seconds: float = 60.0) -> tuple[Child, int]:
    path = tmp_path / "inner"
    child = spawn([sys.executable, "-c", FAMILY.format(deaf=deaf, path=str(path), seconds=seconds)])
    started.append(child)
    return child, _wait(path)


def test_a_process_is_itself_and_no_later_one(tmp_path: Path) -> None:
    me = this_process()
    assert me.alive
    assert process_from(me.to_dict()) == me
    assert process_from({"pid": 1}) is None
    for other in (replace(me, start="1"), replace(me, boot="other"), replace(me, host="elsewhere")):
        assert not other.alive


def test_an_end_reaches_what_a_program_started(tmp_path: Path, started: list[Child]) -> None:
    child, inner = _family(tmp_path, started)
    assert end(child, grace=5.0)
    assert child.returncode == -15
    assert _gone(inner)


def test_an_end_is_bounded_for_a_program_that_is_deaf(tmp_path: Path, started: list[Child]) -> None:
    child, inner = _family(tmp_path, started, deaf=True)
    began = time.monotonic()
    assert end(child, grace=0.3)
    assert time.monotonic() - began < 3.0
    assert child.returncode == -9
    assert _gone(inner)


def test_what_a_child_that_is_gone_left_is_ended(tmp_path: Path, started: list[Child]) -> None:
    child, inner = _family(tmp_path, started, seconds=0.0)
    child.wait()
    assert end(child)
    assert _gone(inner)


def test_somebody_elses_process_is_ended_by_pid_and_start_and_no_other_is(tmp_path: Path, started: list[Child]) -> None:
    child, inner = _family(tmp_path, started)
    known = this_process(child.pid)
    for wrong in (replace(known, start="1"), replace(known, boot="x"), replace(known, host="x")):
        assert end(wrong)  # it is gone, as far as this machine is concerned
    time.sleep(0.05)
    assert child.poll() is None
    assert end(known, grace=5.0)
    assert child.wait() == -15
    assert _gone(inner)


def test_several_are_ended_together(tmp_path: Path, started: list[Child]) -> None:
    for _ in range(3):
        started.append(spawn([sys.executable, "-c", "import time; time.sleep(60)"]))
    ask_to_end(started[0])
    assert started[0].wait() == -15
    assert end(*started)
    assert [c.returncode for c in started] == [-15, -9, -9]


def test_a_program_is_run_to_its_end_or_to_its_limit() -> None:
    done = run([sys.executable, "-c", "import sys; print(sys.stdin.read() * 2); sys.exit(3)"], seconds=20, text="ab")
    assert (done.code, done.out, done.err) == (3, "abab\n", "")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no end after 0 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.3)
    assert time.monotonic() - began < 5
    with pytest.raises(FileNotFoundError):
        run(["no-such-program-here"], seconds=1)


def test_what_is_kept_of_a_program_is_bounded_and_the_rest_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST", 100_000)
    code = "import sys; w = sys.stdout.write; w('a' * 99_999); w('b' * 5_000_001); sys.stderr.write('c' * 100_000)"
    done = run([sys.executable, "-c", code], seconds=20)
    assert done.out == "a" * 99_999 + "b" + "\n[5000000 further bytes were left out]"
    assert done.err == "c" * 100_000


def test_a_program_has_ended_though_another_holds_its_pipes(tmp_path: Path) -> None:
    began = time.monotonic()
    script = "sleep 60 & echo $! > inner; (while true; do echo x 2>&1 || exit; done) & echo told; exit 3"
    done = run(["sh", "-c", script], seconds=20, cwd=tmp_path)
    assert time.monotonic() - began < 5
    assert (done.code, "told" in done.out) == (3, True)
    assert _gone(_wait(tmp_path / "inner"))


def test_an_input_that_nobody_reads_holds_nothing_up() -> None:
    assert run([sys.executable, "-c", "print(1)"], seconds=20, text="x" * 10**6).out == "1\n"
    echo = run([sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"], seconds=20, text="x" * 10**6)
    assert echo.out == "1000000\n"


def test_this_process_is_never_ended() -> None:
    me: Process = this_process()
    assert me.pid == os.getpid()
    assert end(me, wait=0.1)
