"""Who is told what of a run: a real command and a real address; a hook that fails never fails the run."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flows.answers import held_gates
from flows.drive import Finish, Request, drive
from flows.hooks import Hooks, Subject
from flows.leases import driver_lease
from flows.nodes import Plan
from flows.reconcile import reconcile
from flows.state import State
from specs.notify import Notify
from tests.flows.toy_program import entry_for, plan

KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"


def run(home: Path, what: Plan, notify: Notify) -> Finish:
    state = State(home)
    state.prepare()
    state.program(what.program).mkdir(exist_ok=True)
    request = Request(
        str(home / "toy.yaml"), services=False, quiet=True, entry_for=entry_for, preload=(), notify=notify
    )
    with driver_lease(state.program(what.program) / "lease", what.program):
        reconcile(state, what.program)
        return drive(what, state, request)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / ".tutelage"


def command(file: Path, *on: Any) -> Notify:
    return Notify(on=list(on), command=[sys.executable, "-c", KEEP, str(file)])


def told(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_command_reads_what_happened(home: Path, tmp_path: Path) -> None:
    finish = run(home, plan("inconclusive"), command(tmp_path / "told", "held", "needs_person", "completed"))
    assert (finish.exit_code, finish.notes) == (7, [])
    (event,) = told(tmp_path / "told")  # a held gate needs a person, and is told once
    assert (event["event"], event["node"], event["program"]) == ("held", "gate.ship", "toy")
    assert event["execution"] == finish.record.execution
    (gate,) = held_gates(State(home), "toy")
    assert (event["evidence"], event["candidate"]) == (gate.evidence, "teach")
    for verb in ("approve", "reject"):
        assert f"tutelage {verb} toy ship --evidence {gate.evidence[:16]}" in event["what_to_do"]
    run(home, plan("inconclusive"), command(tmp_path / "again", "held", "completed"))
    assert told(tmp_path / "again") == []  # nothing happened: everything was reused


def test_each_end_has_its_name(home: Path, tmp_path: Path) -> None:
    every: list[Any] = ["completed", "promoted", "gate_failed", "needs_person", "node_failed", "interrupted"]
    for number, made in enumerate([plan(), plan("fail"), plan("inconclusive"), plan(fail=True)]):
        run(home, made, command(tmp_path / str(number), *every))
    names = [[e["event"] for e in told(tmp_path / str(n))] for n in range(4)]
    assert names == [["promoted", "completed"], ["gate_failed"], ["needs_person"], ["node_failed"]]
    (failed,) = told(tmp_path / "3")
    assert "the loss is not finite" in failed["reason"]
    assert failed["what_to_do"] == "tutelage logs teach"


def test_a_used_up_budget_is_told(home: Path, tmp_path: Path) -> None:
    made = replace(plan(until=str(tmp_path / "never")), budget={"wall_hours": 1 / 3600})
    finish = run(home, made, command(tmp_path / "told", "budget"))
    assert finish.exit_code == 8
    assert [e["event"] for e in told(tmp_path / "told")] == ["budget"]


def test_a_crash_is_told_by_the_next_run(home: Path, tmp_path: Path) -> None:
    finish = run(home, plan(), command(tmp_path / "told", "crashed"))
    record = finish.record
    gone = {**record.driver, "pid": 2**22 - 1, "start": "1"}
    State(home).save_record(replace(record, ended=None, exit_code=None, driver=gone))
    run(home, plan("fail"), command(tmp_path / "told", "crashed"))
    (event,) = told(tmp_path / "told")
    assert record.execution in event["reason"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no-such-program-here"], "cannot be run"),
        ([sys.executable, "-c", "import sys; sys.exit('no mail today')"], "ended with status 1: no mail today"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not end within 0.5 s"),
        ([sys.executable, "-c", "print(1)", "${env:TUTELAGE_NOT_SET}"], "TUTELAGE_NOT_SET is not set"),
        ([sys.executable, "-c", "print(1)", "a\0b"], "cannot be run (ValueError)"),
    ],
)
def test_a_hook_that_fails_is_shown_and_fails_nothing(home: Path, argv: list[str], said: str) -> None:
    began = time.monotonic()
    finish = run(
        home, plan(), Notify(on=["promoted"], command=argv, timeout_seconds=0.5 if "sleep" in str(argv) else 10)
    )
    assert time.monotonic() - began < 15
    assert finish.exit_code == 0
    (note,) = finish.notes
    assert said in note
    assert "the run itself is not touched" in note


def test_values_of_references_are_not_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTELAGE_TEST_SECRET", "sk-canary")
    argv = [sys.executable, "-c", "import sys; sys.exit('bad key ' + sys.argv[1])", "${env:TUTELAGE_TEST_SECRET}"]
    finish = run(home, plan(), Notify(on=["promoted"], command=argv))
    assert "bad key ${env:TUTELAGE_TEST_SECRET}" in finish.notes[0]
    assert not any(b"sk-canary" in p.read_bytes() for p in home.rglob("*") if p.is_file())


class _Hook(BaseHTTPRequestHandler):
    got: ClassVar[list[dict[str, Any]]] = []
    answer = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if _Hook.answer < 0:  # no HTTP, once
            _Hook.answer = 200
            self.wfile.write(b"hook-canary is no status line\r\n\r\n")
            return
        if _Hook.answer == 0:  # a byte now and then, for ever
            self.send_response(200)
            self.end_headers()
            for _ in range(40):
                self.wfile.write(b".")
                self.wfile.flush()
                time.sleep(0.1)
            return
        _Hook.got.append(json.loads(body))
        self.send_response(_Hook.answer)
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:
        return


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/hook-canary"
    monkeypatch.setenv("TUTELAGE_TEST_HOOK", url)
    _Hook.got, _Hook.answer = [], 200
    yield url
    server.shutdown()
    server.server_close()


def test_an_address_gets_the_event_and_is_never_shown(
    home: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Notify(on=["promoted", "completed"], webhook="${env:TUTELAGE_TEST_HOOK}", timeout_seconds=5.0)
    assert run(home, plan(), hook).notes == []
    assert [e["event"] for e in _Hook.got] == ["promoted", "completed"]
    _Hook.answer = 500
    finish = run(home, plan("fail"), hook.model_copy(update={"on": ["gate_failed"]}))
    assert finish.exit_code == 3
    assert finish.notes == [
        "notify gate_failed: ${env:TUTELAGE_TEST_HOOK} answered 500; the run itself is not touched by that"
    ]
    monkeypatch.setenv("TUTELAGE_TEST_HOOK", "http://127.0.0.1:9/hook-canary")
    finish = run(home, plan("inconclusive"), hook.model_copy(update={"on": ["held"]}))
    assert "cannot be reached (URLError)" in finish.notes[0]
    assert not any(b"hook-canary" in p.read_bytes() for p in home.rglob("*") if p.is_file())


def test_an_answer_that_is_no_http_is_shown_and_later_events_go_out(
    home: Path, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    _Hook.answer = -1
    hook = Notify(on=["promoted", "completed"], webhook="${env:TUTELAGE_TEST_HOOK}", timeout_seconds=5.0)
    finish = run(home, plan(), hook)
    assert finish.exit_code == 0
    (note,) = finish.notes
    assert "notify promoted: ${env:TUTELAGE_TEST_HOOK} cannot be reached (BadStatusLine)" in note
    assert [e["event"] for e in _Hook.got] == ["completed"]
    assert "canary" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("http://127.0.0.1:9/hook canary", "InvalidURL"),
        ("http://127.0.0.1:canary/", "InvalidURL"),
        ("http://[canary/", "ValueError"),
    ],
)
def test_an_address_that_is_none_is_never_shown(
    home: Path, address: str, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUTELAGE_TEST_HOOK", address)
    hook = Notify(on=["promoted", "completed"], webhook="${env:TUTELAGE_TEST_HOOK}", timeout_seconds=5.0)
    state = State(home)
    hooks = Hooks(hook, Subject("toy", "toy.yaml", None), state)
    hooks.tell(["promoted"])
    hooks.tell(["completed"])
    told = [f"notify {e}: ${{env:TUTELAGE_TEST_HOOK}} cannot be reached ({name})" for e in ("promoted", "completed")]
    assert hooks.finish() == [f"{t}; the run itself is not touched by that" for t in told]
    assert "canary" not in "".join(capfd.readouterr())


def test_an_address_that_drips_is_given_up_in_all(home: Path, address: str) -> None:
    _Hook.answer = 0
    hook = Notify(on=["promoted"], webhook="${env:TUTELAGE_TEST_HOOK}", timeout_seconds=0.5)
    began = time.monotonic()
    finish = run(home, plan(), hook)
    assert time.monotonic() - began < 10
    assert "did not answer within 0.5 s" in finish.notes[0] or finish.notes == []
