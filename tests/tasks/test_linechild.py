"""Programs of the user's own are asked line by line, within bounds, and leave nothing behind."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specs.commands import Command, Limits, ResolvedCommand
from specs.errors import StateError
from tasks import processes
from tasks.linechild import LineChild, LineError
from tasks.ownprogram import check_files, file_digests, launch_of
from tasks.processes import end_ownerless, pid_is_free

POLITE = """\
import json, os, sys
for line in sys.stdin:
    ask = json.loads(line)
    found = {"hello": {"protocol": 1, "version": "v1"}, "env": {"env": dict(os.environ)}, "pid": {"pid": os.getpid()}}
    print(json.dumps({"id": ask["id"], **found.get(ask["do"], {"got": ask})}), flush=True)
"""


def child(
    folder: Path, code: str = POLITE, *, seconds: float = 10.0, version: str | None = None, **limits: int
) -> LineChild:
    (folder / "own.py").write_text(code)
    spec = Command(command=[sys.executable, "own.py"], timeout_seconds=seconds, limits=Limits(**limits))
    resolved = ResolvedCommand(folder=str(folder), files=file_digests(spec, folder), reported=version)
    return LineChild(launch_of("environments.mine", spec.model_copy(update={"resolved": resolved})), "environment")


def said(do: str, answer: str) -> str:
    """Return a program that greets well and gives this answer, a Python expression, to `do`."""
    return POLITE.replace("    found =", f"    if ask['do'] == {do!r}:\n        {answer}\n    found =")


def test_a_question_gets_its_answer_and_the_program_knows_nothing_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-canary-secret")
    mine = child(tmp_path)
    assert mine.hello()["version"] == "v1"
    assert mine.ask("what", {"x": [1, "ü"]})["got"] == {"id": 2, "do": "what", "x": [1, "ü"]}
    told = mine.ask("env")["env"]
    assert "sk-canary" not in str(told)
    assert set(told) <= {
        "PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "HOME",
        "TMPDIR",
        "PYTHONHASHSEED",
        "PYTHONDONTWRITEBYTECODE",
        "TUTELAGE_OWNER",
    }
    pid, home = mine.ask("pid")["pid"], Path(told["HOME"])
    assert home.is_dir()
    mine.close()
    assert pid_is_free(pid)
    assert not home.exists()


FAILURES = [
    ("ended", "sys.exit('out of coal')", "exit status 1); stderr: out of coal"),
    ("ended", "os.kill(os.getpid(), 9)", "signal 9"),
    ("late", "import time; time.sleep(60)", "no answer within 4 s"),
    ("too_long", "print('x' * 3000, flush=True)", "longer than limits.line_kb (2)"),
    ("too_long", "print('x' * 3000, end='', flush=True); import time; time.sleep(9)", "longer than limits.line_kb (2)"),
    (
        "too_much",
        "[print('x' * 60000, file=sys.stderr, flush=True) for _ in range(99)]",
        "more than limits.output_mb (1)",
    ),
    ("out_of_step", "print('{\"id\": 1}'); print('{\"id\": 2}', flush=True); continue", "it answered"),
    ("out_of_step", "print('{\"id\": true}', flush=True); continue", "it answered"),
    ("not_json", "print('thinking…', flush=True); continue", "cannot be read"),
    ("not_json", "print('{\"id\": %d, \"x\": NaN}' % ask['id'], flush=True); continue", "NaN is not a number"),
    ("not_json", "print(json.dumps({'id': ask['id'], 'x': '\\ud800'}), flush=True); continue", "a lone surrogate"),
    ("not_json", "print('[' * 1500, flush=True); continue", "cannot be read"),
    ("not_json", 'print(\'{"id": 1, "id": 2}\', flush=True); continue', "repeated key"),
    ("not_json", "print('7', flush=True); continue", "no JSON object"),
    ("not_json", "sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush(); continue", "cannot be read"),
    ("refused", 'print(\'{"id": %d, "error": "no such world"}\' % ask[\'id\'], flush=True); continue', "no such world"),
]


@pytest.mark.parametrize(("kind", "answer", "told"), FAILURES, ids=[f"{k}-{i}" for i, (k, *_) in enumerate(FAILURES)])
def test_what_goes_wrong_is_told_with_its_evidence(kind, answer, told, tmp_path):
    mine = child(tmp_path, said("boom", answer), seconds=4.0, line_kb=2, output_mb=1)
    mine.hello()
    with pytest.raises(LineError) as e:
        mine.ask("boom")
    assert (e.value.kind, told in str(e.value)) == (kind, True), str(e.value)
    assert pickle.loads(pickle.dumps(e.value)).kind == kind
    assert len(str(e.value)) < 4000
    assert mine.ask("again")["got"]["do"] == "again", "the next question is answered, by another start where needed"
    assert mine.starts == (2 if kind in ("ended", "late", "too_long", "too_much", "out_of_step") else 1)
    mine.close()


def test_what_an_earlier_start_held_is_lost_and_starts_are_bounded(tmp_path):
    mine = child(tmp_path, said("boom", "sys.exit(3)"), restarts=1)
    mine.hello()
    for start in (1, 2):
        with pytest.raises(LineError, match="exit status 3"):
            mine.ask("boom", started=start)
        if start == 1:
            mine.hello()
            with pytest.raises(LineError, match="what it held is lost, for asked to boom it ended"):
                mine.ask("what", started=1)
    with pytest.raises(LineError, match=r"given up after 2 starts \(limits.restarts is 1\)") as e:
        mine.ask("what")
    assert e.value.kind == "given_up"


def test_a_program_that_does_not_greet_or_has_another_version(tmp_path):
    mine = child(tmp_path, "print('loading the model', flush=True)\n" + POLITE)
    with pytest.raises(LineError, match="loading the model"):
        mine.hello()
    (tmp_path / "b").mkdir()
    other = child(tmp_path / "b", version="v0")
    with pytest.raises(StateError, match=r"reports the version 'v1', but 'v0' when the run was planned"):
        other.hello()
    (tmp_path / "c").mkdir()
    third = child(tmp_path / "c", POLITE.replace('"protocol": 1', '"protocol": 9'))
    with pytest.raises(LineError, match="expected protocol 1"):
        third.hello()


def test_a_program_that_cannot_be_started_or_was_changed(tmp_path):
    mine = child(tmp_path)
    (tmp_path / "own.py").write_text(POLITE + "# changed\n")
    with pytest.raises(StateError, match=r"own.py is gone or was changed after the run was planned"):
        mine.hello()
    gone = LineChild(launch_of("environments.mine", Command(command=["no-such-program-here"]), tmp_path), "environment")
    with pytest.raises(LineError, match="cannot be started: no-such-program-here"):
        gone.hello()


def test_limits_hold_in_the_program(tmp_path):
    hungry = said("boom", "x = bytearray(400 << 20)")
    mine = child(tmp_path, hungry, memory_mb=200)
    with pytest.raises(LineError, match="MemoryError"):
        mine.ask("boom")
    mine.close()


LEAVER = said(
    "leave",
    "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True, stdin=subprocess.DEVNULL, "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(json.dumps({'id': ask['id'], 'pid': p.pid}), flush=True); continue",
)


def gone(pid: int, seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if pid_is_free(pid):
            return True
        time.sleep(0.01)
    return False


def test_what_it_started_ends_with_it(tmp_path):
    mine = child(tmp_path, LEAVER)
    left, own = mine.ask("leave")["pid"], mine.ask("pid")["pid"]
    mine.close()
    assert gone(left)
    assert gone(own)


def test_all_of_it_ends_with_a_parent_that_is_killed(tmp_path):
    (tmp_path / "own.py").write_text(LEAVER)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom specs.commands import Command\n"
        "from tasks.linechild import LineChild\nfrom tasks.ownprogram import launch_of\n"
        f"c = LineChild(launch_of('environments.mine', Command(command=[sys.executable, 'own.py']), Path({str(tmp_path)!r})), 'x')\n"
        "print(c.ask('pid')['pid'], c.ask('leave')['pid'], c.ask('env')['env']['HOME'], flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    *told, home = parent.stdout.readline().split()
    pids = [int(p) for p in told]
    assert len(pids) == 2
    assert Path(home).is_dir()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert all(gone(pid) for pid in pids)
    until = time.monotonic() + 5
    while Path(home).exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(home).exists()


def test_digests_cover_what_the_command_names_and_what_is_declared(tmp_path):
    (tmp_path / "own.py").write_text("1")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "a.txt").write_text("2")
    (tmp_path / "rules" / "__pycache__").mkdir()
    (tmp_path / "rules" / "__pycache__" / "x.pyc").write_text("3")
    found = file_digests(Command(command=["python3", "own.py", "--fast"], files=["rules"]), tmp_path)
    assert list(found) == ["own.py", "rules/a.txt"]


def test_digests_cover_absolute_files_but_no_interpreter(tmp_path, monkeypatch):
    model, tools = tmp_path / "model", tmp_path / "bin"
    model.write_text("weights")
    tools.mkdir()
    (tools / "python9").write_bytes(b"\x7fELF")
    (tools / "mine").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    command = ["env", str(tools / "python9"), str(tools / "mine"), str(model)]
    assert list(file_digests(Command(command=command), tmp_path)) == [str(tools / "mine"), str(model)]


def test_a_file_that_is_added_to_a_declared_folder_is_a_change(tmp_path):
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "a.txt").write_text("2")
    (tmp_path / "own.py").write_text(POLITE)
    (tmp_path / "empty").mkdir()
    spec = Command(command=[sys.executable, "own.py"], files=["rules/", "empty", "own.py"])
    resolved = ResolvedCommand(folder=str(tmp_path), files=file_digests(spec, tmp_path))
    launch = launch_of("environments.mine", spec.model_copy(update={"resolved": resolved}))
    check_files(launch)
    for folder in ("rules", "empty"):
        (tmp_path / folder / "__pycache__").mkdir()
        (tmp_path / folder / "__pycache__" / "b.pyc").write_text("ignored")
        check_files(launch)
        (tmp_path / folder / "b.py").write_text("new")
        with pytest.raises(StateError, match=rf"{folder}/b.py was added after the run was planned"):
            check_files(launch)
        (tmp_path / folder / "b.py").unlink()
    (tmp_path / "rules" / "a.txt").unlink()
    with pytest.raises(StateError, match=r"rules/a.txt is gone"):
        check_files(launch)


def test_what_a_program_started_ends_though_its_guard_was_killed(tmp_path):
    mine = child(tmp_path, LEAVER.replace("start_new_session=True, ", ""))
    left, own = mine.ask("leave")["pid"], mine.ask("pid")["pid"]
    assert mine._running is not None
    os.kill(mine._running.child.pid, signal.SIGKILL)
    mine.close()
    assert gone(own)
    assert gone(left)
    assert mine.ask("pid")["pid"] != own
    mine.close()


DETACHED = said(
    "leave",
    "r, w = os.pipe()\n"
    "        if os.fork() == 0:\n"
    "            os.setsid()\n"
    "            if os.fork() == 0:\n"
    "                os.write(w, b'%d' % os.getpid()); os.closerange(0, w + 1)\n"
    "                import time; time.sleep(60)\n"
    "            os._exit(0)\n"
    "        os.wait(); print(json.dumps({'id': ask['id'], 'pid': int(os.read(r, 20))}), flush=True); continue",
)
"""A program that forks twice, in a session of its own, as daemons do."""


def test_what_went_into_another_session_ends_though_its_guard_was_killed(tmp_path):
    mine = child(tmp_path, DETACHED)
    left, own = mine.ask("leave")["pid"], mine.ask("pid")["pid"]
    assert mine._running is not None
    os.kill(mine._running.child.pid, signal.SIGKILL)
    assert gone(own)
    assert not pid_is_free(left), "nobody but its owner knows of it"
    mine.close()
    assert gone(left)


def test_what_went_into_another_session_ends_at_the_next_start_though_guard_and_owner_were_killed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(processes, "_namespace", lambda: "pid:[of this test]")  # runs of other tests look as well
    (tmp_path / "own.py").write_text(DETACHED)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom specs.commands import Command\nfrom tasks import processes\n"
        "processes._namespace = lambda: 'pid:[of this test]'\n"
        "from tasks.linechild import LineChild\nfrom tasks.ownprogram import launch_of\n"
        f"c = LineChild(launch_of('environments.mine', Command(command=[sys.executable, 'own.py']), Path({str(tmp_path)!r})), 'x')\n"
        "print(c.ask('leave')['pid'], c._running.child.pid, flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    left, guard = (int(p) for p in owner.stdout.readline().split())
    other = child(tmp_path, DETACHED.replace("sleep(60)", "sleep(61)"))
    kept = other.ask("leave")["pid"]
    os.kill(owner.pid, signal.SIGSTOP)  # so that it does not see its guard die
    os.kill(guard, signal.SIGKILL)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    mark = f"pid:[of this test]/{owner.pid}/"
    until = time.monotonic() + 10
    while [pid for pid, found in processes._marked() if found.startswith(mark)] != [
        left
    ]:  # the others end with the guard
        assert time.monotonic() < until
        time.sleep(0.02)
    assert end_ownerless() == 1
    assert gone(left)
    assert not pid_is_free(kept), "its owner lives"
    other.close()
    assert gone(kept)


def test_a_program_that_signals_its_own_group_ends_as_it_would_alone(tmp_path):
    mine = child(tmp_path, said("boom", "os.kill(0, 15)"))
    with pytest.raises(LineError, match=r"asked to boom it ended \(signal 15\)"):
        mine.ask("boom")
    mine.close()
