"""A gate that is held asks a person, and acts on the answer to exactly the evidence that was looked at."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows import registry
from flows.answers import answers, commands, held_gates
from flows.cli import main
from flows.leases import this_process
from flows.scheduling import ended_state
from flows.state import RunRecord, State, new_execution, now
from tests.flows import nightly


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose only run is held."""
    folder = tmp_path_factory.mktemp("held") / "project"
    file = nightly.project(folder, 'schedule: {nightly: {cron: "0 3 * * *"}}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUTELAGE_HOME", str(folder / ".tutelage"))
        assert main(["run", str(file), "--no-services", "--json"]) == 7
    return folder


@pytest.fixture
def file(held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of a copy of that project."""
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "project" / ".tutelage"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return nightly.copied(held, tmp_path / "project")


def state() -> State:
    from flows.state import find_home

    return State(find_home())


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_yes_promotes_and_is_written_down(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "nightly"]) == 0
    assert "gate.ship waits for a person: tutelage approve nightly ship" in capsys.readouterr().out
    assert main(["approve", "nightly", "ship", "--by", "Ada", "--reason", "read them all"]) == 0
    assert "gate.ship approved by Ada at 20" in capsys.readouterr().out
    assert main(["status", "nightly", "--json"]) == 0
    (waiting,) = said(capsys)["held"]
    assert (waiting["answer"]["by"], waiting["answer"]["why"]) == ("Ada", "read them all")
    assert main(["run", str(file), "--no-services", "--json"]) == 0
    data = said(capsys)
    assert data["champion"]["version"] == 1
    assert data["held"] == []
    gate = data["gates"][0]
    assert gate["answer"] == "pass"
    assert gate["person"]["by"] == "Ada"
    assert "the evidence alone is inconclusive" in gate["sentence"]
    version = registry.champion(state().home, "nightly")
    assert version is not None
    assert version.reason == "gate ship: approved by Ada: read them all"
    ran = [n["node"] for n in data["nodes"] if n["status"] == "completed"]
    assert ran == ["gate.ship", "promote.ship", "report"]
    assert main(["run", str(file), "--no-services", "--json"]) == 0
    assert {n["status"] for n in said(capsys)["nodes"]} == {"reused"}


def test_no_fails_the_gate(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reject", "nightly", "--by", "Ada", "--json"]) == 0
    assert said(capsys)["verdict"] == "rejected"
    assert main(["run", str(file), "--no-services", "--json"]) == 3
    data = said(capsys)
    assert data["champion"] is None
    assert data["gates"][0]["answer"] == "fail"


def test_an_answer_stays_and_is_given_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["approve", "nightly", "--by", "Ada"]) == 0
    assert main(["approve", "nightly", "--by", "Bob"]) == 0
    assert "gate.ship already approved by Ada" in capsys.readouterr().out
    assert main(["reject", "nightly", "--by", "Bob"]) == 5
    assert "was approved by Ada" in capsys.readouterr().err
    (one,) = answers(state().home, "nightly")
    assert (one.verdict, one.by, one.candidate) == ("approved", "Ada", "teach")


def test_other_evidence_asks_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["approve", "nightly", "--by", "Ada"]) == 0
    nightly.problems(file.parent, nightly.FEW, seed=2)
    assert main(["run", str(file), "--no-services", "--json"]) == 7
    capsys.readouterr()
    assert main(["reject", "nightly", "--by", "Ada"]) == 0
    assert main(["run", str(file), "--no-services", "--json"]) == 3
    assert len(answers(state().home, "nightly")) == 2


def test_an_answer_names_the_evidence_that_was_looked_at(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "nightly", "--json"]) == 0
    (looked,) = said(capsys)["held"]
    evidence = looked["evidence"][:16]
    assert f"tutelage approve nightly ship --evidence {evidence}" in looked["text"]
    assert f"tutelage reject nightly ship --evidence {evidence}" in looked["text"]
    nightly.problems(file.parent, nightly.FEW, seed=2)
    assert main(["run", str(file), "--no-services", "--json"]) == 7  # as a schedule would, while the person reads
    capsys.readouterr()
    assert main(["approve", "nightly", "ship", "--evidence", evidence, "--by", "Ada"]) == 2
    printed = capsys.readouterr()
    assert answers(state().home, "nightly") == []
    record = state().last("nightly")
    assert record is not None
    (now,) = held_gates(state(), record.program)
    assert now.evidence != looked["evidence"]
    for part in (f"'{evidence}'", now.evidence[:16], "teach", now.sentence, record.execution):
        assert part in printed.err
    assert main(["approve", "nightly", "ship", "--evidence", now.evidence[:16], "--by", "Ada"]) == 0
    shown, *_, last = capsys.readouterr().out.splitlines()
    assert shown == f"nightly: gate.ship, candidate teach, evidence {now.evidence[:16]}: {now.sentence}"
    assert last.startswith("the next run promotes (teach)")
    (one,) = answers(state().home, "nightly")
    assert one.evidence == now.evidence


@pytest.mark.parametrize("evidence", ["", "abc", "not hexadecimal", "0" * 65])
def test_evidence_that_names_nothing_is_refused(file: Path, capsys: pytest.CaptureFixture[str], evidence: str) -> None:
    assert main(["approve", "nightly", "--evidence", evidence]) == 2
    assert "expected the first 8 to 64 hexadecimal digits" in capsys.readouterr().err
    assert answers(state().home, "nightly") == []


def test_the_held_state_says_how_to_answer(file: Path) -> None:
    record = state().last("nightly")
    assert record is not None
    (gate,) = held_gates(state(), record.program)
    message = ended_state(state(), "nightly", 7, "").message
    assert f"`tutelage approve nightly ship --evidence {gate.evidence[:16]}`" in message
    assert f"`tutelage reject nightly ship --evidence {gate.evidence[:16]}`" in message


def test_what_cannot_be_answered_is_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["approve", "nightly", "golden"]) == 2
    assert "no held gate is called 'golden'; held: ship" in capsys.readouterr().err
    assert main(["approve", "other"]) == 2
    assert "no run of other is recorded here" in capsys.readouterr().err
    assert main(["reject", "nightly"]) == 0
    assert main(["run", str(file), "--no-services"]) == 3
    capsys.readouterr()
    assert main(["approve", "nightly"]) == 2
    assert "no gate waits for a person" in capsys.readouterr().err


def unfinished(gate_of: RunRecord, driver: dict[str, Any]) -> RunRecord:
    """Return the record of a later run that has come to no gate."""
    done = {n: end for n, end in gate_of.nodes.items() if n.startswith("data.")}
    return replace(
        gate_of, execution=new_execution(), nodes=done, driver=driver, started=now(), ended=None, exit_code=None
    )


@pytest.mark.parametrize("how", ["left out", "at work", "crashed"])
def test_a_run_that_did_not_come_to_the_gate_takes_no_question_away(
    file: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = state().last("nightly")
    assert first is not None
    (gate,) = held_gates(state(), "nightly")
    golden = file.with_name("golden.jsonl")
    asked = golden.read_bytes()
    if how == "left out":
        nightly.problems(file.parent, nightly.FEW, seed=2)
        assert main(["run", str(file), "--until", "data.golden", "--no-services"]) == 0
        assert f"gate.ship (held in execution {first.execution}) waits for a person" in capsys.readouterr().out
    else:
        gone = {**first.driver, "pid": 2**22 - 1, "start": "1"}
        state().save_record(unfinished(first, this_process().to_dict() if how == "at work" else gone))
    assert main(["status", "nightly", "--json"]) == 0
    (waiting,) = said(capsys)["held"]
    assert (waiting["evidence"], waiting["execution"]) == (gate.evidence, first.execution)
    told = commands("nightly", gate)[0].split()[1:]  # as the notification wrote it
    assert main([*told, "--by", "Ada"]) == 0
    (one,) = answers(state().home, "nightly")
    assert (one.execution, one.evidence) == (first.execution, gate.evidence)
    again = capsys.readouterr().out.splitlines()[-1].partition("now: ")[2]
    last = state().last("nightly")
    assert last is not None
    assert again == f"tutelage {'run' if how == 'left out' else 'resume'} {last.file}"
    if how == "left out":
        golden.write_bytes(asked)
        assert main([*again.split()[1:], "--no-services", "--json"]) == 0
        assert said(capsys)["champion"]["version"] == 1
        assert held_gates(state(), "nightly") == []


def test_a_gate_that_is_to_be_done_again_asks_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = state().last("nightly")
    assert first is not None
    (gate,) = held_gates(state(), "nightly")
    state().save_record(unfinished(first, first.driver))
    assert len(held_gates(state(), "nightly")) == 1
    state().set_aside(gate.run_key)  # as `--from gate.ship` does
    assert held_gates(state(), "nightly") == []
    assert main(["approve", "nightly"]) == 2
    assert "no gate waits for a person" in capsys.readouterr().err


def test_a_damaged_answer_is_no_answer(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["approve", "nightly", "--by", "Ada"]) == 0
    (path,) = (state().home / "answers" / "nightly").glob("*.json")
    path.write_text(path.read_text().replace("approved", "rejected"))
    assert main(["run", str(file), "--no-services"]) == 5
    assert "damaged answer (its content was changed); remove the file and answer again" in capsys.readouterr().err


def test_an_answer_does_not_overwrite_the_champion_that_a_person_chose_since(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["approve", "nightly", "--by", "Ada"]) == 0
    assert main(["promote", "nightly", "init", "--reason", "better in use"]) == 0
    capsys.readouterr()
    assert main(["run", str(file), "--no-services", "--json"]) == 0
    data = said(capsys)
    assert (data["gates"][0]["answer"], data["gates"][0]["champion"]) == ("pass", None)
    assert data["champion"]["stage"] == "init"
    assert registry.load(state().home, "nightly").aliases == {"champion": 1, "challenger": 2}
    (note,) = next(n["notes"] for n in data["nodes"] if n["node"] == "promote.ship")
    assert "the champion was changed meanwhile" in note
    assert main(["run", str(file), "--no-services", "--json", "--refresh"]) == 7
    gate = said(capsys)["gates"][0]
    assert (gate["champion"], gate["look"]) == (data["champion"]["digest"], 1), "the same candidate is the same look"


def test_other_problems_are_judged_with_the_champion_of_now(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nightly.problems(file.parent, nightly.MANY, seed=1)
    assert main(["run", str(file), "--no-services"]) == 0
    nightly.problems(file.parent, nightly.MANY, seed=2)
    capsys.readouterr()
    assert main(["run", str(file), "--no-services", "--json"]) == 0
    data = said(capsys)
    assert data["gates"][0]["champion"] == data["champion"]["digest"]
    assert main(["run", str(file), "--no-services", "--json"]) == 0
    assert {n["status"] for n in said(capsys)["nodes"]} == {"reused"}


def test_a_champion_that_a_person_chose_stays_news_while_others_run(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduled = ["run", str(file), "--scheduled", "nightly", "--no-services", "--json"]
    assert main(scheduled) == 7
    assert main(["promote", "nightly", "init", "--reason", "to begin with"]) == 0
    kept = registry.path_of(state().home, "nightly")
    kept.write_text(re.sub(r'"time": "20..', '"time": "2000', kept.read_text()))  # long before the run that follows
    assert main(["run", str(file), "--no-services"]) == 7  # what names meant, all reused
    capsys.readouterr()
    assert main(scheduled) == 7
    data = said(capsys)
    assert data["gates"][0]["champion"] == data["champion"]["digest"]
    assert main(scheduled) == 7
    assert {n["status"] for n in said(capsys)["nodes"]} <= {"reused", "held", "skipped"}


def test_a_scheduled_run_has_news_only_from_outside(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["approve", "nightly"]) == 0
    scheduled = ["run", str(file), "--scheduled", "nightly", "--no-services", "--json"]
    capsys.readouterr()
    assert main(scheduled) == 0
    capsys.readouterr()
    assert main(scheduled) == 0  # its own promotion and its own look are no news
    assert {n["status"] for n in said(capsys)["nodes"]} == {"reused"}
    nightly.problems(file.parent, nightly.MANY, seed=3)
    assert main(scheduled) == 0
    data = said(capsys)
    assert data["schedule"] == "nightly"
    assert data["gates"][0]["answer"] == "already_promoted"
    assert main(["promote", "nightly", "v1", "--reason", "again"]) == 0
    assert main(["status", "nightly", "--runs", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()[-1]
    assert [r["state"] for r in json.loads(out)] == ["held", "done", "nothing to do", "done"]
