"""Bad input and bad surroundings through the real command line: said where and what to do, the right exit code, nothing lost.

Every item has a test here; the parts behind it are tested in depth elsewhere:

| item | in depth |
|---|---|
| a typo, a wrong type, tabs, odd YAML | specs/test_loader, test_reader, test_commands, test_any_text; contracts/test_specs |
| a missing file, an unset variable | specs/test_loader; flows/test_resolve |
| a name on the command line that is not there | flows/test_run, test_judging, test_conversations |
| a port in use | flows/test_services |
| a full disk | faults/test_disk; flows/test_files, test_launch; tasks/learning/test_checkpoints |
| a damaged checkpoint | faults/test_quickstart_kills (command line); tasks/learning/test_checkpoints |
| a damaged receipt, output, record, registry | faults/test_damage; flows/test_state, test_registry, test_resolve |
| a locked or missing MLflow store | flows/test_recorder |
| a Prefect server that is gone | flows/test_orchestrate, test_services |
| a second run of the same program | faults/test_two_drivers; flows/test_state |
| a teacher that fails, dies, or costs more than its cap | tasks/teachers/test_client, test_hostile_servers, test_kills; flows/test_teaching |
| data with NaN, a mark, repeated keys, blank lines | flows/test_data |
| a signal, a kill | faults/test_kills, test_quickstart_kills |
"""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import services
from flows.cli import main
from flows.leases import driver_lease
from flows.state import State
from specs.environments import OrderDesk
from specs.records import to_dict
from tasks.episodes.environments import environment_for
from tests.faults.commands import Ended, end, processes, receipts, start, tutelage, wait_for_no_process

PROGRAM = """\
program: tiny
policy: {init: {kind: scratch, tokenizer: {kind: bpe, train_on: demos}}}
environments: {desk: {kind: order_desk, types: [stock, place]}}
data:
  demos: {kind: demonstrations, environment: desk, size: 40}
  golden: {kind: problems, environment: desk, split: golden, size: 20, role: golden}
verifiers: {order_state: {kind: environment_state}}
stages:
  - {id: teach, algorithm: {type: sft}, data: [demos]}
evaluation: {sets: [golden]}
gates:
  ship: {require: [{metric: success, set: golden, at_least: 0.1}], on_pass: promote}
"""
MINE = "  mine: {kind: file, environment: desk, path: mine.jsonl}\n"
RL = "  - {id: rl, algorithm: {type: grpo, steps: 1}, data: [mine]}\n"
RUN = ("run", "tiny.yaml", "--no-services")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a program; its home is `home` beside it."""
    (tmp_path / "tiny.yaml").write_text(PROGRAM)
    return tmp_path


def _with_file(here: Path, path: str = "mine.jsonl") -> None:
    text = PROGRAM.replace("verifiers:", MINE.replace("mine.jsonl", path) + "verifiers:")
    (here / "tiny.yaml").write_text(text.replace("evaluation:", RL + "evaluation:"))


def _lines() -> list[str]:
    """Return two lines of a problem file."""
    desk = environment_for("desk", OrderDesk(kind="order_desk", types=["stock"]))
    return [json.dumps(to_dict(problem)) for problem in desk.problems("train", 2, 1)]


def _without_root_powers() -> None:
    """Let permissions count, also for root."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


def _limited(here: Path, limit: object, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process that `limit` was called in."""
    env = {**os.environ, "TUTELAGE_HOME": str(here / "home")}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=here, env=env,
        capture_output=True, text=True, check=False, preexec_fn=limit,  # type: ignore[arg-type]
    )  # fmt: skip


def test_mistakes_of_a_program_are_told_at_once_with_their_places(here: Path) -> None:
    text = PROGRAM.replace("size: 40", "size: many").replace("at_least", "at_lest").replace("sft", "stf")
    (here / "tiny.yaml").write_text(text)
    for command in (("check", "tiny.yaml"), RUN):
        told = tutelage(*command, home=here / "home", cwd=here).must(2, "tiny.yaml:5:", "tiny.yaml:9:", "tiny.yaml:12:")
        assert "did you mean" in told.said
    assert not list((here / "home").rglob("receipt.json"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tabs.yaml", "program: tiny\n\tpolicy: 3\n", "tabs.yaml:2:1: not YAML: a tab indents here; use spaces"),
        (".", None, "found a directory, expected a program file"),
        ("gone.yaml", None, "gone.yaml: no such file; check the path"),
        ("bytes.yaml", "\x00\x01", "bytes.yaml"),
        ("empty.yaml", "", "empty.yaml"),
    ],
)
def test_what_is_no_program(name: str, content: str | None, told: str, here: Path) -> None:
    if content is not None:
        (here / name).write_text(content)
    tutelage("run", name, "--no-services", home=here / "home", cwd=here).must(2, told)


def test_what_a_command_names_and_is_not_there_is_a_slip_and_no_failure(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = here / "home"
    monkeypatch.chdir(here)
    monkeypatch.setenv("TUTELAGE_HOME", str(home))

    def slip(told: str, *command: str) -> None:
        assert main(list(command)) == 2, command
        assert told in capsys.readouterr().err, command

    for command, told in [
        (("resume",), "no program was run here yet; start one with"),
        (("status",), "no run of any program is recorded here"),
        (("logs", "teach"), "no run of any program is recorded here"),
        (("compare", "a", "b"), "no run is called 'a'"),
        (("plan", "tiny.yaml", "--diff", "last"), "it was not run here yet"),
        (("run", "tiny.yaml", "--no-services", "--only", "eval.teach.golden"), "which are not done; run with `--until"),
    ]:
        slip(told, *command)
    tutelage(*RUN, "--until", "data.golden", home=home, cwd=here).must(0)
    done = receipts(home)
    for command, told in [
        ((*RUN, "--until", "data.goldn"), "no node is called 'data.goldn'; did you mean data.golden"),
        ((*RUN, "--only", "teech"), "no node is called 'teech'; did you mean teach"),
        ((*RUN, "--from", "nothing"), "no node is called 'nothing'; expected one of"),
        ((*RUN, "--until", "data.golden", "--from", "teach"), "--from teach: it is not among the nodes that this run"),
        (("status", "tinny"), "no run of tinny is recorded here; programs that ran here: tiny"),
        (("logs", "teech"), "no node 'teech' in the last run"),
        (("why", "tiny.yaml", "teech"), "no node is called 'teech'; did you mean teach"),
        (("compare", "tiny", "tiny"), "its run has no node 'eval.teach.golden'"),
        (("compare", "tiny", "tiny", "--confidence", "3"), "--confidence 3"),
        (("inspect", "tiny:teech"), "its run has no node 'teech'"),
        (("evaluate", "tiny.yaml", "--set", "nope", "--policy", "champion"), "nope"),
        (("try", "tiny.yaml", "--policy", "teech"), "no policy is called 'teech'"),
        (("data", "show", "nope"), "no published data set is called so"),
        (("promote", "tiny", "v9", "--reason", "x"), "found neither a version nor a stage called 'v9'"),
        (("rollback", "tiny", "--reason", "x"), "there is no previous champion to go back to"),
        (("export", "nope", "out"), "no policy is called 'nope'"),
        (("approve", "tiny", "--reason", "x"), "no gate waits for a person"),
    ]:
        slip(told, *command)
    assert receipts(home) == done


def test_a_missing_data_file_and_an_unset_variable_are_named_with_their_field(here: Path) -> None:
    _with_file(here)
    tutelage(*RUN, home=here / "home", cwd=here).must(2, "tiny.yaml:7:41 data.mine.path: no such file: mine.jsonl")
    _with_file(here, '"${env:MY_DATA}"')
    told = tutelage(*RUN, home=here / "home", cwd=here)
    told.must(2, "tiny.yaml:7:41 data.mine.path: the environment variable MY_DATA is not set; set it (export MY_DATA=")


def test_data_with_nan_marks_repeated_keys_and_blank_lines(here: Path) -> None:
    _with_file(here)
    home, mine = here / "home", here / "mine.jsonl"
    a, b = _lines()
    name = json.loads(a)["id"]
    for content, told in [
        (f'{a}\n{{"min_calls": NaN, {b[1:]}\n', "mine.jsonl:2: NaN is not a number; expected one strict JSON object"),
        (f'{a}\n\n{b[:-1]}, "id": "c"}}\n', "mine.jsonl:3: repeated key 'id'"),
        (f"{a}\n{a}\n", f"mine.jsonl:2: the id {name!r} stands in line 1 too"),
        (f"{a}\n{b[:30]}", "mine.jsonl:2: "),
        ("\n", "mine.jsonl: holds no record; expected one JSON object a line"),
    ]:
        mine.write_text(content)
        ended = tutelage("run", "tiny.yaml", "--no-services", "--until", "data.apart", home=home, cwd=here)
        ended.must(5, told, "data.mine: FAILED", "go on with: tutelage resume tiny.yaml")
        assert "data.golden" in receipts(home)  # nothing else was lost
    mine.write_bytes(b"\xef\xbb\xbf" + f"{a}\r\n\r\n{b}\r\n".encode())
    tutelage("run", "tiny.yaml", "--no-services", "--until", "data.mine", home=home, cwd=here).must(0)
    assert receipts(home)["data.mine"]["metrics"]["records"] == 2.0


def test_a_full_disk_stops_with_the_path_and_the_same_command_goes_on(here: Path) -> None:
    part = (*RUN, "--until", "data.apart")
    limit = (9500, resource.RLIM_INFINITY)  # the plan fits, and the first data set does not
    full = _limited(here, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit), *part)
    Ended(full.returncode, full.stdout, full.stderr, 0.0).must(
        5, f"disk full: {here}/home/nodes/", "would pass the file-size limit of this process; raise it"
    )
    tutelage(*part, home=here / "home", cwd=here).must(0)


def test_a_home_that_cannot_be_written_or_read_is_named(here: Path) -> None:
    (here / "file").write_text("")
    for home in (here / "file", here / "file" / "below"):
        tutelage(*RUN, home=home, cwd=here).must(5, f"{home}: cannot keep state here", "TUTELAGE_HOME")
        tutelage("plan", "tiny.yaml", home=home, cwd=here).must(0)
        tutelage("status", home=home, cwd=here).must(2, "no run of any program is recorded here")
    home, part = here / "home", (*RUN, "--until", "data.golden")
    home.mkdir(mode=0o555)
    refused = _limited(here, _without_root_powers, *part)
    assert refused.returncode == 5
    assert f"{home}: cannot keep state here (Permission denied)" in refused.stderr
    home.chmod(0o755)
    tutelage(*part, home=home, cwd=here).must(0)
    for path in (home / "programs" / "tiny" / "lease", next(home.glob("nodes/*/receipt.json"))):
        path.chmod(0)
        refused = _limited(here, _without_root_powers, *part)
        path.chmod(0o644)
        assert refused.returncode == 5
        assert f"tutelage: {path}: Permission denied; what is done is kept" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert "1 of 1" not in tutelage(*part, home=home, cwd=here).must(0, "reused").err


@pytest.mark.parametrize("junk", ["{", '{"program": 1}'])
def test_damaged_records_are_named_and_done_without(junk: str, here: Path) -> None:
    home, part = here / "home", (*RUN, "--until", "data.golden")
    tutelage(*part, home=home, cwd=here).must(0)
    last = home / "programs" / "tiny" / "last.json"
    last.write_text(junk)
    for command in (("status",), ("resume", "--no-services")):
        told = tutelage(*command, home=home, cwd=here)
        told.must(0, "last.json: damaged record of the last run, that of", "is used instead", "data.golden")
        last.write_text(junk)
    tutelage("plan", "tiny.yaml", "--diff", "last", home=home, cwd=here).must(0, "no difference to last")
    receipt = next(home.glob("nodes/*/receipt.json"))
    receipt.write_text(junk)
    tutelage(*part, home=home, cwd=here).must(0, f"{receipt}: damaged receipt, its node is done again", "damaged-1")
    registry = home / "registry" / "tiny.json"
    registry.write_text(junk)
    told = tutelage(*part, "--refresh", home=home, cwd=here)
    told.must(5, f"{registry}: damaged registry", "move it away to start a new one")
    tutelage("rollback", "tiny", "--reason", "x", home=home, cwd=here).must(5, f"{registry}: damaged registry")
    tutelage("status", home=home, cwd=here).must(0, f"{registry.name}: damaged registry")


def test_a_second_run_is_refused_with_the_name_of_the_first(here: Path) -> None:
    home = here / "home"
    State(home).prepare()
    State(home).program("tiny").mkdir()
    with driver_lease(State(home).program("tiny") / "lease", "tiny"):
        told = tutelage(*RUN, home=home, cwd=here).must(9, f"process {os.getpid()} on ", "--wait")
        assert told.seconds < 20.0
    assert not list(home.glob("nodes/*"))


def test_a_run_from_another_folder_goes_by_the_programs_own_place(here: Path) -> None:
    _with_file(here)
    (here / "mine.jsonl").write_text("\n".join(_lines()))
    (here / "elsewhere").mkdir()
    part = ("run", here / "tiny.yaml", "--no-services", "--until", "data.mine")
    tutelage(*part, home=here / "home", cwd=here / "elsewhere").must(0)
    tutelage("resume", "--no-services", home=here / "home", cwd=here / "elsewhere").must(0, "data.mine reused")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_soon_and_the_same_command_goes_on(number: signal.Signals, here: Path) -> None:
    home = here / "home"
    process = start(*RUN, "--set", "data.demos.size=4000", home=home, cwd=here)
    until = time.monotonic() + 30
    while not list(home.glob("nodes/*/receipt.json")):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    ended = end(process, 15).must(4, f"{number.name}: saving and stopping", "go on with: tutelage resume tiny.yaml")
    assert ended.seconds < 11.0
    assert not processes(home)
    done = receipts(home)
    tutelage(*RUN, "--set", "data.demos.size=4000", "--until", "data.golden", home=home, cwd=here).must(0, "reused")
    assert receipts(home) == done


def test_a_mistake_of_our_own_is_a_sentence_and_its_traceback_a_file(here: Path) -> None:
    code = "import sys; import flows.cli as c; c.parser = lambda command: 1 / 0; sys.argv[1:] = ['status']; c.main()"
    env = {**os.environ, "TMPDIR": str(here)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert ended.returncode == 1
    assert ended.stderr.startswith("tutelage: ZeroDivisionError: division by zero; this was not foreseen")
    assert "Traceback" not in ended.stderr
    (kept,) = here.glob("tutelage-*.txt")
    assert str(kept) in ended.stderr
    assert kept.read_text().startswith("Traceback")


def test_a_port_in_use_is_named_and_nothing_stays_behind(here: Path) -> None:
    home = here / "home"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = str(s.getsockname()[1])
        told = tutelage("up", "--prefect-port", port, home=home, cwd=here)
        told.must(2, f"port {port} for prefect: another process has it", "choose another with `--prefect-port`")
    assert not processes(home)


@pytest.mark.services
@pytest.mark.slow
def test_services_that_are_gone_cost_a_sentence_each(here: Path) -> None:
    home = here / "home"
    dead = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "MLFLOW_TRACKING_URI": "http://user:sk-canary@127.0.0.1:9"}
    part = ("run", "tiny.yaml", "--until", "data.golden")
    told = tutelage(*part, home=home, cwd=here, variables=dead).must(
        0,
        "the run goes on without Prefect: PREFECT_API_URL: no Prefect server answers at",
        "not sent yet to MLflow and DVC",
        "tutelage data sync",
    )
    assert told.seconds < 40.0
    assert "sk-canary" not in told.said
    assert set(receipts(home)) == {"data.golden"}
    status, until = home / "recorder" / "status.json", time.monotonic() + 30.0
    while not status.exists():  # the run waits a few seconds for it and no longer
        assert time.monotonic() < until, processes(home)
        time.sleep(0.05)
    trying = [pid for pid, command in processes(home).items() if "flows.recorder" in command]
    assert trying, "it goes on trying for a minute"
    for group in {os.getpgid(pid) for pid in trying}:
        os.killpg(group, signal.SIGKILL)
    wait_for_no_process(home, seconds=10.0)  # from here on nothing is written
    assert "sk-canary" not in json.dumps(json.loads(status.read_text()))
    for path in home.rglob("*"):
        assert not path.is_file() or b"sk-canary" not in path.read_bytes(), path
    assert not services.answers("not an address", "prefect", timeout=1.0)
