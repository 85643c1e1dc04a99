"""A verifier that is a program: its verdicts are checked, and what is none is invalid with its reason."""

import json
import sys
from pathlib import Path

import pytest

from specs.commands import Limits
from specs.errors import VerifierError
from specs.records import Observation, Problem
from specs.verifiers import ProcessVerifier
from tasks.evidence.verifiers import verifier_for
from tasks.evidence.verifiers.contract import contract
from tasks.evidence.verifiers.selftest import episode, self_test, turn

FOLDER = Path(__file__).parents[2] / "examples"
PROBLEM = Problem("p", "house", "on", "train", "Switch it on.", {}, {"state": {"lamps": {"red": True}}, "answer": None})


def spec(*more: str, seconds: float = 20.0, **settings) -> ProcessVerifier:
    return ProcessVerifier(
        kind="process", command=["sh", str(FOLDER / "lamp_judge.sh"), *more], timeout_seconds=seconds, **settings
    )


def test_a_shell_script_judges():
    verifier = verifier_for("lamps", spec())
    right = verifier.verify(episode(state={"lamps": {"red": True}}), PROBLEM)
    assert (right.passed, right.score, right.version) == (True, 1.0, "process@1/lamp-rules-1")
    slow = episode(turn(Observation({}, event="needless")), state={"lamps": {"red": True}})
    assert (verifier.verify(slow, PROBLEM).score, verifier.verify(slow, PROBLEM).evidence) == (0.8, {"needless": 1})
    assert verifier.verify(episode(state={"lamps": {}}), PROBLEM).passed is False
    assert verifier.verify(episode(), PROBLEM).invalid == "no final state"


def test_faults_and_cuts_are_settled_before_it_is_asked():
    verifier = verifier_for("lamps", spec())
    good = {"lamps": {"red": True}}
    assert (verifier.verify(episode(state=good, status="infrastructure"), PROBLEM).invalid or "").startswith(
        "infrastructure"
    )
    assert verifier.verify(episode(state=good, status="truncated"), PROBLEM).evidence == {"reason": "truncated"}
    lenient = verifier_for("lamps", spec(judges_cut=True))
    assert lenient.verify(episode(state=good, status="truncated"), PROBLEM).passed


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("range", "the score is 7, expected a number from 0 to 1"),
        ("huge", "the score is 1000"),
        ("half", "a lone surrogate"),
        ("bool", "the score is True"),
        ("word", "passed is 'yes', expected true or false"),
        ("empty", "the score is None"),
        ("evidence", "the evidence is no object"),
        ("nan", "NaN is not a number"),
        ("long", "longer than limits.line_kb"),
        ("late", "no answer within"),
        ("crash", "exit status 9"),
    ],
)
def test_what_is_no_verdict_is_invalid_with_its_reason(how, told):
    seconds = 4.0 if how == "late" else 20.0
    verifier = verifier_for("lamps", spec(how, seconds=seconds, limits=Limits(line_kb=512, restarts=1)))
    found = verifier.verify(episode(state={"lamps": {"red": True}}), PROBLEM)
    assert (found.score, found.passed) == (None, None)
    assert told in (found.invalid or ""), found.invalid


def test_after_its_starts_are_used_up_every_verdict_is_invalid():
    verifier = verifier_for("lamps", spec("crash", limits=Limits(restarts=1)))
    reasons = [verifier.verify(episode(state={}), PROBLEM).invalid or "" for _ in range(3)]
    assert "exit status 9" in reasons[0]
    assert "exit status 9" in reasons[1]
    assert "given up after 2 starts" in reasons[2]


@pytest.mark.parametrize(
    ("how", "told"),
    [("selftest", "the lamp is on: got passed=True"), ("nocases", "no case that must fail")],
)
def test_it_must_pass_its_own_cases_first(how, told):
    with pytest.raises(VerifierError, match=r"verifiers\.lamps: the self-test of process failed") as e:
        verifier_for("lamps", spec(how))
    assert told in str(e.value)


def test_cases_of_a_file_count_too(tmp_path):
    cases = tmp_path / "cases.jsonl"
    case = {"about": "green", "trajectory": {"final_state": {"lamps": {}}}, "problem": PROBLEM_DATA, "expect": "pass"}
    cases.write_text(json.dumps(case) + "\n")
    assert "green: got passed=False" in self_test("lamps", spec(cases=str(cases)))[0]
    cases.write_text(json.dumps({**case, "expect": "fail"}) + "\n")
    assert self_test("lamps", spec(cases=str(cases))) == []
    for text, told in (
        ("{", "no JSON"),
        ('{"expect": "maybe"}', "is no case"),
        ('{"expect": []}', "is no case"),
        ('{"expect": "pass", "about": "\\ud800"}', "a lone surrogate"),
        ('{"expect": "pass", "problem": 3}', "are objects"),
    ):
        cases.write_text(text + "\n")
        assert told in self_test("lamps", spec(cases=str(cases)))[0]


PROBLEM_DATA = {"expected": {"state": {"lamps": {"green": True}}}}


def test_the_contract_of_a_verifier():
    assert [f for f in contract("lamps", spec()) if not f[1]] == []
    broken = contract("lamps", spec("crash"))
    assert [f[0] for f in broken if not f[1]] == ["same verdict twice", "bears whatever a policy writes"]
    assert contract("lamps", spec("selftest"))[0][1] is False
    assert sys.executable
