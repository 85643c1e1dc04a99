"""`tutelage cases`: what rounds found, listed by cause and shown with its conversation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows import confirming, pools
from flows.cli import main
from flows.state import NodeReceipt, RunRecord, State, now
from specs.records import BadCase, Observation, to_dict
from tests.contracts.sources import ROOT
from tests.tasks.judging.builders import call, trajectory


def case(number: int, **changes: Any) -> BadCase:
    plain: dict[str, Any] = {
        "id": f"train/p{number}/aaaa", "program": "desk", "set": "train", "role": "train", "environment": "desk",
        "problem_id": f"p{number}", "problem_type": "mail", "trajectory_id": f"p{number}/0",
        "policy": "round1.mine/start/d1", "status": "confirmed", "confirmed_by": "state environment_state@2",
        "cause": "argument", "confidence": 0.9, "evidence": {"made": "x"}, "first_wrong_turn": 1, "round": 1,
        "remedy": "repair", "life": "in_training",
    }  # fmt: skip
    return BadCase(**{**plain, **changes})


CASES = [
    case(1),
    case(2, cause="loop", life="open", remedy="ask_person", first_wrong_turn=None),
    case(3, cause="loop", status="suspected", confirmed_by=None, life="open", remedy=None),
    case(4, life="fixed", regression="p99"),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "home"
    monkeypatch.setenv("TUTELAGE_HOME", str(found))
    pools.publish(found, "desk", pools.CASES, [to_dict(c) for c in CASES], {})
    return found


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["cases", *arguments]) == 0
    return capsys.readouterr().out


def run_of(home: Path) -> None:
    """Record a run whose round mined the trajectory of the first case."""
    from tasks.episodes.shards import write_shards

    state = State(home)
    state.prepare()
    key = "k" * 64
    out = state.node(key) / "out"
    out.mkdir(parents=True)
    tried = trajectory(1, success=False, calls=[(call("send_mail", to="<b>7</b>\x1b[2J"), Observation({"ok": 1}))])
    write_shards(out / "trajectories", [*[trajectory(5)], _of(tried, "round1.mine/start/d1")])
    state.seal(NodeReceipt("round1.mine", "mine", key, "p", "completed", [], "d" * 64, {}))
    plan = state.save_plan({"nodes": [], "policies": {}})
    end = {"run_key": key, "status": "completed", "reason": "", "seconds": 1.0}
    record = RunRecord("e1", "desk", "x.yaml", {}, plan, {}, {}, now(), now(), 0, {"round1.mine": end})
    state.program("desk").mkdir(exist_ok=True)
    state.save_record(record)


def _of(tried: Any, policy: str) -> Any:
    tried.policy_versions = [(policy, tried.policy_tokens)]
    return tried


def test_cases_are_listed_by_cause(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "list")
    assert "train/p1/aaaa" in out
    assert "4 cases" in out
    assert "1 cases" in told(capsys, "list", "desk", "--status", "suspected")
    shown = told(capsys, "list", "--limit", "1")
    assert "4 cases; 1 shown" in shown


def test_cases_as_json_count_what_was_chosen(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "list", "--cause", "loop", "--life", "open", "--json"))
    assert (found["cases"], found["chosen"]) == (4, 2)
    assert found["counts"]["status"] == {"confirmed": 1, "suspected": 1}
    assert [c["id"] for c in found["shown"]] == ["train/p2/aaaa", "train/p3/aaaa"]


def test_a_case_is_shown_with_its_conversation(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(home)
    out = told(capsys, "show", "train/p1")
    assert "cause      argument (0.90 sure; first wrong turn 2)" in out
    assert "send_mail" in out
    assert "\x1b" not in out, "what a policy wrote cannot act on the terminal"
    assert json.loads(told(capsys, "show", "train/p1/aaaa", "--json"))["trajectory"]["id"] == "p1/0"


def test_a_case_whose_run_was_removed_is_shown_without_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "show", "p4")
    assert "p99, in the regression pool in its place" in out
    assert "its conversation is gone" in out
    assert json.loads(told(capsys, "show", "p4", "--json"))["trajectory"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "train/p9"], "no case is called 'train/p9'; did you mean train/p"),
        (["show", "train/p"], "'train/p' is the beginning of 4 cases: train/p1/aaaa"),
        (["list", "dsk"], "dsk: it has no cases here; did you mean desk?"),
    ],
)
def test_what_is_not_there_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["cases", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_several_programs_must_be_told_apart(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pools.publish(home, "other", pools.CASES, [], {})
    assert main(["cases", "list"]) != 0
    assert "several programs have cases; expected one of desk, other" in capsys.readouterr().err
    assert "no case was published yet" in told(capsys, "list", "other")


def test_without_any_ledger_nothing_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "none"))
    assert "no case was published yet" in told(capsys, "list")
    assert not (tmp_path / "none").exists()


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["list", "--help"], ["show", "--help"]):
        with pytest.raises(SystemExit):
            main(["cases", *arguments])
        assert "example: tutelage cases" in capsys.readouterr().out


def test_a_person_confirms_a_case_dismisses_it_and_the_list_shows_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, "confirm", "train/p3", "--by", "Ada", "--reason", "it guessed", "--cause", "argument")
    assert "train/p3/aaaa is confirmed by Ada (cause argument)" in said
    assert "`--refresh`" in said
    shown = json.loads(told(capsys, "show", "train/p3", "--json"))
    assert (shown["status"], shown["confirmed_by"], shown["cause"]) == ("confirmed", "Ada", "argument")
    assert shown["evidence"]["said"]["reason"] == "it guessed"
    told(capsys, "dismiss", "train/p3", "--by", "Bob", "--json")
    shown = json.loads(told(capsys, "show", "train/p3", "--json"))
    assert (shown["status"], shown["cause"]) == ("suspected", "verifier")
    assert [a.by for a in confirming.answers(home, "desk")] == ["Bob"]
    assert main(["cases", "confirm", "train/p9"]) == 2
    assert "no case is called 'train/p9'" in capsys.readouterr().err


GIVING = """
import sys
from pathlib import Path
from flows import confirming, pools
from specs.records import case_from

home, who = Path(sys.argv[1]), sys.argv[2]
cases = [case_from(c) for c in pools.cases(home, "desk")]
print("ready", flush=True)
sys.stdin.readline()
for case in cases:
    if who == "round":
        case.life = "in_training"
        confirming.note_lives(home, "desk", cases)
    elif case.problem_type == who:
        confirming.give(home, case, confirmed=True, by=who, reason="read it")
if who == "round":
    confirming.note_lives(home, "desk", cases)
"""


def test_no_answer_is_lost_where_two_people_and_a_round_speak_at_once(home: Path) -> None:
    people = ("Ada", "Bob")
    many = [case(n, problem_type=people[n % 2]) for n in range(20)]
    pools.publish(home, "desk", pools.CASES, [to_dict(c) for c in many], {})
    command = [sys.executable, "-c", GIVING, str(home)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    running = [subprocess.Popen([*command, who], **pipes) for who in (*people, "round")]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in running:
        one.communicate(timeout=60)
        assert one.returncode == 0
    given = {a.case.id: a.by for a in confirming.answers(home, "desk")}
    assert given == {c.id: c.problem_type for c in many}
