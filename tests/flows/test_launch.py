"""Child processes: warm, watched, ended with their driver, plain about how they died."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.child import Assignment, encode
from flows.launch import LocalLauncher, NodeError
from flows.leases import Process, this_process
from flows.state import State
from specs.errors import Interrupted
from tests.faults.running import wait_until


def _work(home: Path, name: str, **params: Any) -> Assignment:
    state = State(home)
    state.prepare()
    state.node(name).mkdir()
    return Assignment(
        f"tests.flows.test_launch:{name}",
        name,
        "train.sft",
        name,
        "p",
        str(home),
        params,
        {"threads": 1},
        7,
        {},
        {},
        {},
    )


def told(node: Any) -> Any:
    """A body that says what it was given."""
    from flows.context import Outcome

    facts = {
        "omp": os.environ["OMP_NUM_THREADS"],
        "session": os.getsid(0) == os.getpid(),
        "json": "json.tool" in sys.modules,
        "draw": __import__("random").random(),
    }
    print("printed by the body", flush=True)
    os.system("echo printed below python")
    (node.out / "facts.json").write_text(json.dumps(facts))
    return Outcome(metrics={"bad": float("nan"), "good": 1.0})


def chats(node: Any) -> Any:
    from flows.context import Outcome

    (node.out / "result").write_text("small")
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    for i in range(100):
        print(f"line {i:03d} " + "x" * 91)
    print("no newline at the end", end="")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return Outcome()


def dies(node: Any) -> Any:
    os.kill(os.getpid(), node.params["signal"])
    time.sleep(5)


def sleeps(node: Any) -> Any:
    (node.out / "here").write_text(str(os.getpid()))
    time.sleep(60)


def waits(node: Any) -> Any:
    (node.out / "here").write_text("")
    while not node.stop():
        time.sleep(0.01)
    raise Interrupted("saved at step 3")


def _run(launcher: LocalLauncher, work: Assignment) -> tuple[list[str], list[Process]]:
    seen: list[Process] = []
    notes = launcher.run(work, seen.append, lambda *_: None)
    return notes, seen


@pytest.fixture(params=["forked", "spare"])
def launch(request: pytest.FixtureRequest) -> Any:
    """Both ways in which a node's process is kept ready."""

    def make(**settings: Any) -> LocalLauncher:
        launcher = LocalLauncher(**settings, fork=request.param == "forked")
        launcher.prepare(1)
        return launcher

    return make


def test_a_child_has_a_session_threads_a_seed_and_preloaded_modules_and_its_log(tmp_path: Path, launch: Any):
    launcher = launch(threads=3, preload=("json.tool",))
    _, seen = _run(launcher, _work(tmp_path, "told"))
    launcher.close()
    facts = json.loads((State(tmp_path).node("told") / "out" / "facts.json").read_text())
    assert facts == {"omp": "3", "session": True, "json": True, "draw": __import__("random").Random(7).random()}
    assert (State(tmp_path).node("told") / "log").read_text() == "printed by the body\nprinted below python\n"
    assert not seen[0].alive
    receipt = State(tmp_path).receipt("told")
    assert receipt is not None
    assert receipt.metrics == {"bad": None, "good": 1.0}
    assert "metric bad is nan" in receipt.notes[0]


def test_a_log_that_the_disk_does_not_take_is_cut_and_said_so_and_nothing_else(tmp_path: Path, launch: Any):
    launcher = launch()
    notes, _ = _run(launcher, _work(tmp_path, "chats"))
    launcher.close()
    assert notes == ["the disk took no more log lines, some were dropped"]
    assert State(tmp_path).receipt("chats", deep=True) is not None
    assert (State(tmp_path).node("chats") / "log").read_text().startswith("line 000")


def test_a_killed_child_is_told_by_signal_and_log(tmp_path: Path, launch: Any):
    launcher = launch()
    with pytest.raises(NodeError, match=r"ended by SIGKILL \(out of memory, or killed by hand\).*/log"):
        _run(launcher, _work(tmp_path, "dies", signal=signal.SIGKILL))
    launcher.close()


def test_a_child_that_cannot_start_says_why(tmp_path: Path, launch: Any):
    launcher = launch(preload=("no_such_module",))
    with pytest.raises(NodeError, match="No module named 'no_such_module'"):
        _run(launcher, _work(tmp_path, "waits"))
    launcher.close()


def test_stopping_lets_a_child_save(tmp_path: Path, launch: Any):
    launcher = launch()

    here = tmp_path / "nodes" / "waits" / "out" / "here"

    def stop_when_there() -> None:
        wait_until(here.exists)
        launcher.stop()

    threading.Thread(target=stop_when_there).start()
    with pytest.raises(Interrupted, match="saved at step 3"):
        _run(launcher, _work(tmp_path, "waits"))
    with pytest.raises(Interrupted):
        _run(launcher, _work(tmp_path, "told"))
    launcher.close()


def test_stopping_waits_for_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "endless_import.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launcher = LocalLauncher(preload=("endless_import",), fork=True)
    launcher.prepare(1)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            _run(launcher, _work(tmp_path, "told"))
        except Interrupted as e:
            raised.append(e)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.3)
    began = time.monotonic()
    launcher.stop()
    launcher.kill()
    thread.join(5)
    assert time.monotonic() - began < 3
    assert [type(e) for e in raised] == [Interrupted]
    launcher.close()


@pytest.mark.parametrize("how", ["stdin ends", "parent is killed"])
def test_a_child_ends_with_its_driver(how: str, tmp_path: Path):
    work = _work(tmp_path, "sleeps")
    here = tmp_path / "nodes" / "sleeps" / "out" / "here"
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'flows.child'], stdin=subprocess.PIPE, start_new_session=True)\n"
        f"p.stdin.write({encode(work)!r}); p.stdin.flush()\n"
        f"import pathlib\nwhile not pathlib.Path({str(here)!r}).exists(): time.sleep(0.01)\n"
        "print('ready', flush=True)\n"
        + ("p.stdin.close(); print(p.wait(), flush=True)" if how == "stdin ends" else "time.sleep(60)")
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        child = this_process(wait_until(lambda: here.read_text() and int(here.read_text())))
        if how != "stdin ends":
            assert child.alive
            driver.kill()
        began = time.monotonic()
        wait_until(lambda: not child.alive, 3.0)
        assert time.monotonic() - began < 1.5


def test_an_unneeded_spare_ends_quietly():
    launcher = LocalLauncher()
    launcher.prepare(2)
    spare = launcher._spare
    assert spare is not None
    launcher.prepare(0)
    assert spare.popen.returncode is not None
    launcher.close()


def test_nothing_of_a_nursery_is_left(tmp_path: Path):
    launcher = LocalLauncher(fork=True)
    launcher.prepare(2)
    nursery = launcher._nursery
    assert nursery is not None
    _run(launcher, _work(tmp_path, "told"))
    launcher.prepare(0)
    assert nursery.process.returncode is not None
    launcher.close()


def test_the_children_of_a_nursery_end_with_the_driver(tmp_path: Path):
    work = _work(tmp_path, "sleeps")
    here = tmp_path / "nodes" / "sleeps" / "out" / "here"
    code = (
        "from flows.child import Assignment\nfrom flows.launch import LocalLauncher\n"
        f"launcher = LocalLauncher(fork=True); launcher.prepare(1)\nwork = {work!r}\n"
        "launcher.run(work, lambda _: None, lambda *_: None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as driver:
        child = this_process(wait_until(lambda: here.exists() and here.read_text() and int(here.read_text())))
        assert child.alive
        driver.kill()
        wait_until(lambda: not child.alive, 3.0)
