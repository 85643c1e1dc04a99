"""Each verifier's table of cases, and that none of them raises."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import VerifierError
from specs.records import Observation, Problem, Status, ToolCall, Trajectory, Turn, to_dict
from specs.verifiers import EnvironmentState, ExactAnswer, ToolCalls, ToolTrace, Verifier
from tasks.evidence import verifiers
from tasks.evidence.compare import call_difference, same_json
from tasks.evidence.verdicts import passed
from tasks.evidence.verifiers import selftest, verifier_for
from tasks.evidence.verifiers.selftest import episode, turn

SPECS: list[Verifier] = [
    EnvironmentState(kind="environment_state"),
    EnvironmentState(kind="environment_state", answer=False),
    ToolTrace(kind="tool_trace"),
    ToolTrace(kind="tool_trace", forbid=["duplicate_order", "repeated_mail"], max_errors=0),
    ToolTrace(kind="tool_trace", max_errors=2),
    ToolCalls(kind="tool_calls"),
    ToolCalls(kind="tool_calls", order=True),
    ToolCalls(kind="tool_calls", partial=True),
    ToolCalls(kind="tool_calls", order=True, partial=True),
    ExactAnswer(kind="exact"),
    ExactAnswer(kind="exact", strip=False),
]


def problem(**expected: Any) -> Problem:
    return Problem("p", "e", "t", "train", "text", {}, expected)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_self_tests_hold_accept_reject_adversarial_and_empty_cases_and_pass(spec: Verifier) -> None:
    found = list(selftest.cases(spec))

    assert selftest.self_test("v", spec) == []
    assert {c.passes for c in found} >= {True, None}
    assert len(found) >= 4
    assert re.fullmatch(rf"{spec.kind}@[1-9]\d*", verifier_for("v", spec).version)


def test_a_verifier_that_fails_its_self_test_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Believer:
        version = "believer@1"

        def verify(self, trajectory: Trajectory, problem: Problem):
            return passed("v", self.version)

    monkeypatch.setattr(selftest, "build", lambda name, spec, model: Believer())
    with pytest.raises(VerifierError, match=r"verifiers\.v: the self-test of exact failed.*infrastructure fault"):
        verifiers.verifier_for("v", ExactAnswer(kind="exact"))


def test_status_decides_before_state_does() -> None:
    verifier = verifier_for("v", SPECS[0])
    want, right = problem(state={"n": 1}, answer=None), {"n": 1}
    by_status: dict[Status, bool | None] = {
        "finished": True, "turn_limit": False, "tool_error": True, "truncated": False, "infrastructure": None,
    }  # fmt: skip
    for status, outcome in by_status.items():
        verdict = verifier.verify(episode(state=right, status=status), want)
        assert verdict.passed is outcome
        assert verdict.score == (None if outcome is None else float(outcome))
        assert (verdict.invalid is not None) == (outcome is None)


def test_evidence_says_where_the_state_differs() -> None:
    want = problem(state={"orders": {"1": "open", "2": "open"}, "mail": []}, answer=None)
    verdict = verifier_for("v", SPECS[0]).verify(episode(state={"orders": {"1": "shipped"}, "mail": []}), want)

    assert verdict.evidence["differences"] == [
        {"at": "orders.1", "expected": "open", "found": "shipped"},
        {"at": "orders.2", "expected": "open", "found": None},
    ]


def test_the_trace_score_is_the_share_of_calls_that_worked() -> None:
    good, bad = turn(Observation({})), turn(Observation({}, is_error=True))
    malformed = Turn(0, 0, "}", ToolCall("", {}, "}", error="malformed_json"), None)
    verdict = verifier_for("v", SPECS[2]).verify(episode(good, bad, malformed, good), problem())

    assert (verdict.score, verdict.passed) == (0.5, True)


# KP-VER-11
CAFE = {"name": "lookup", "arguments": {"city": ["Café"], "n": [1]}, "required": ["city", "n"]}


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ('{"name":"lookup","arguments":{"n":1,"city":"Caf\\u00e9"}}', None),
        ('{"name":"lookup","arguments":"{\\"city\\":\\"Café\\",\\"n\\":1}"}', None),
        ('{"name":"lookup","arguments":{"city":"Cafe\u0301","n":1}}', None),
        ('{"name":"lookup","arguments":{"city":"Café","n":"1"}}', "type"),
        ('{"name":"lookup","arguments":{"city":"Café","n":true}}', "type"),
        ('{"name":"lookup","arguments":{"city":"Café","n":2}}', "value"),
        ('{"name":"lookup","arguments":{"city":"Café","n":1.5}}', "value"),
        ('{"name":"lookup","arguments":{"city":"Café"}}', "missing_argument"),
        ('{"name":"lookup","arguments":{"city":"Café","n":1,"m":1}}', "extra_argument"),
        ('{"name":"look","arguments":{"city":"Café","n":1}}', "name"),
        ('{"name":"lookup","arguments":"{\\"city\\":\\"Café\\",\\"n\\":1,\\"n\\":2}"}', "malformed"),
        ('{"name":"lookup","arguments":[1]}', "malformed"),
        ('{"name":"lookup"}', "malformed"),
        ("[]", "malformed"),
    ],
)
def test_calls_are_compared_by_value_and_type(written: str, reason: str | None) -> None:
    found = call_difference(json.loads(written), CAFE)
    assert (found and found["reason"]) == reason


@pytest.mark.parametrize(
    ("allowed", "value", "equal"),
    [
        (["New York", "NYC"], "new york", True),
        (["New York"], "New-York, ", True),
        (["New York"], "York", False),
        (["15"], "1.5", False),
        (["-5"], "5", False),
        (["2.0"], "2", True),
        ([5], 5.0, True),
        ([0.1], 0.1 + 1e-12, True),
        ([5], 10**400, False),
        ([True], True, True),
        ([True], 1, False),
        ([1], True, False),
        ([0], False, False),
        (["", "x"], "", True),
        (["", "x"], "-", False),
        ([[1, 2]], [1, 2], True),
        ([[1, 2]], [2, 1], False),
        ([[1, 2]], [1], False),
        ([{"a": [1], "b": ["", 2]}], {"a": 1}, True),
        ([{"a": [1], "b": ["", 2]}], {"a": 1, "b": 3}, False),
        ([{"a": [1]}], {}, False),
        ([{"a": [1]}], {"a": 1, "c": 1}, False),
        ([[{"a": [1, 2]}]], [{"a": 2}], True),
        ([None], None, True),
        ([1], None, False),
        ([1], float("nan"), False),
    ],
)
def test_allowed_values(allowed: list[Any], value: Any, *, equal: bool) -> None:
    expected = {"name": "f", "arguments": {"x": allowed}, "required": []}
    assert (call_difference({"name": "f", "arguments": {"x": value}}, expected) is None) is equal


def test_an_argument_may_be_left_out_only_where_it_may_be_empty_and_is_not_required() -> None:
    call = {"name": "f", "arguments": {}}
    assert call_difference(call, {"name": "f", "arguments": {"x": ["", 1]}, "required": []}) is None
    for allowed, required in ((["", 1], ["x"]), ([1], [])):
        found = call_difference(call, {"name": "f", "arguments": {"x": allowed}, "required": required})
        assert found == {"reason": "missing_argument", "argument": "x"}


def test_parallel_calls_match_one_to_one() -> None:
    def call(x: int) -> dict[str, Any]:
        return {"name": "f", "arguments": {"x": x}}

    either = {"name": "f", "arguments": {"x": [1, 2]}}
    one = {"name": "f", "arguments": {"x": [1]}}
    free, ordered = verifier_for("v", SPECS[5]), verifier_for("v", SPECS[6])

    def judged(verifier: Any, calls: list[Any], *expected: Any) -> bool | None:
        return verifier.verify(episode(state={"calls": calls}), problem(calls=list(expected))).passed

    assert judged(free, [call(1), call(2)], either, one), "a greedy matching would take the wrong one first"
    assert judged(free, [call(2), call(1)], either, one)
    assert not judged(free, [call(2), call(2)], either, one)
    assert not judged(free, [call(1), call(1)], one)
    assert judged(ordered, [call(2), call(1)], either, one)
    assert not judged(ordered, [call(1), call(2)], either, one)


@pytest.mark.parametrize(
    ("calls", "score"),
    [
        ([("f", {"x": 1, "y": "a"})], 2 / 3),
        ([("f", {"x": 1})], 2 / 3),
        ([("f", {})], 1 / 3),
        ([("f", {"x": 1, "y": "b", "z": 5})], 3 / 4),
        ([("f", {"z": 1, "w": 1, "v": 1})], 2 / 6),
        ([("g", {"x": 1, "y": "b"})], 0.0),
        ([("f", {"x": 1, "y": "b"})] * 2, 1 / 2),
        ([], 0.0),
    ],
)
def test_a_partial_score_is_the_share_of_name_and_arguments_that_is_right(
    calls: list[tuple[str, dict[str, Any]]], score: float
) -> None:
    wanted = problem(calls=[{"name": "f", "arguments": {"x": [1], "y": ["b"], "z": ["", 1]}}])
    written = [Turn(0, 0, "", ToolCall(n, a, "", error="missing_argument"), None) for n, a in calls]
    for spec in (ToolCalls(kind="tool_calls", partial=True), ToolCalls(kind="tool_calls", partial=True, order=True)):
        verdict = verifier_for("v", spec).verify(episode(*written), wanted)
        assert (verdict.passed, verdict.score) == (False, pytest.approx(score))


def test_a_failure_never_scores_in_full_and_without_partial_not_at_all() -> None:
    wanted = problem(calls=[{"name": "f", "arguments": {"x": [1]}}])
    unusable = Turn(0, 0, "", ToolCall("f", {"x": 1}, "", error="unknown_tool"), None)

    partial = verifier_for("v", ToolCalls(kind="tool_calls", partial=True)).verify(episode(unusable), wanted)
    whole = verifier_for("v", ToolCalls(kind="tool_calls")).verify(episode(unusable), wanted)

    assert (partial.passed, partial.score) == (False, 0.99)
    assert (whole.passed, whole.score) == (False, 0.0)


def test_partial_scores_give_each_expected_call_once_in_any_order_or_by_place() -> None:
    two = [{"name": "f", "arguments": {"x": [1]}}, {"name": "f", "arguments": {"x": [2]}}]
    written = [Turn(0, 0, "", ToolCall("f", {"x": x}, ""), None) for x in (2, 3)]

    def score(*, order: bool) -> float | None:
        spec = ToolCalls(kind="tool_calls", partial=True, order=order)
        return verifier_for("v", spec).verify(episode(*written), problem(calls=two)).score

    assert score(order=False) == pytest.approx(3 / 4)
    assert score(order=True) == pytest.approx(1 / 2)


def test_calls_come_from_the_turns_where_the_state_keeps_none() -> None:
    used = turn(Observation({}), "f", x=1)
    unusable = Turn(0, 0, "", ToolCall("f", {"x": 2}, "", error="wrong_type"), None)
    expected = problem(calls=[{"name": "f", "arguments": {"x": [1]}}])

    assert verifier_for("v", SPECS[5]).verify(episode(unusable, used), expected).passed


def test_a_switch_is_not_a_number_in_a_state() -> None:
    assert not same_json({"a": [1]}, {"a": [True]})
    assert not same_json(1, 1.0)
    assert same_json({"a": [1, None, "x"], "b": {}}, {"b": {}, "a": [1, None, "x"]})


def test_nesting_without_end_is_different_and_not_an_error() -> None:
    def nest(depth: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(depth):
            found = [found]
        return found

    state = verifier_for("v", SPECS[0]).verify(episode(state={"a": nest(5000)}), problem(state={"a": nest(5000)}))
    calls = [{"name": "f", "arguments": {"x": nest(5000)}}]
    wanted = problem(calls=[{"name": "f", "arguments": {"x": [nest(5000)]}}])
    traced = verifier_for("v", SPECS[5]).verify(episode(state={"calls": calls}), wanted)

    assert (state.passed, traced.passed) == (False, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.fixed_dictionaries({"name": JSON, "arguments": JSON}) | JSON, max_size=3)
STATES = (
    st.none() | st.dictionaries(st.sampled_from(("orders", "mail")), JSON) | st.fixed_dictionaries({"calls": CALLS})
)
TURNS = st.builds(
    Turn,
    start=st.just(0),
    end=st.just(0),
    text=st.text(max_size=5),
    call=st.none() | st.builds(ToolCall, name=st.text(max_size=5), arguments=st.just({}), written=st.just("")),
    observation=st.none() | st.builds(Observation, data=st.just({}), event=st.none() | st.just("repeated_mail")),
)


@settings(max_examples=150, deadline=None)
@given(
    state=STATES,
    answer=st.none() | st.text(max_size=5) | st.just("\ud800"),
    turns=st.lists(TURNS, max_size=3),
    status=st.sampled_from(("finished", "truncated", "turn_limit", "tool_error", "infrastructure")),
    spec=st.sampled_from(SPECS),
)
def test_no_verifier_raises_and_every_verdict_is_sound(
    state: dict[str, Any] | None, answer: str | None, turns: list[Turn], status: Status, spec: Verifier
) -> None:
    expected = problem(
        state={"orders": {}, "mail": []}, answer="yes", calls=[{"name": "f", "arguments": {"x": ["a", 1]}}] * 2
    )
    verdict = verifiers.build("v", spec).verify(episode(*turns, state=state, answer=answer, status=status), expected)

    assert verdict.verifier == "v"
    json.dumps(to_dict(verdict), allow_nan=False).encode("utf-8")
    if verdict.invalid is None:
        assert verdict.score is not None
        assert 0.0 <= verdict.score <= 1.0
        assert verdict.passed in (True, False)
    else:
        assert (verdict.score, verdict.passed) == (None, None)
    assert (status == "infrastructure") <= (verdict.invalid is not None)
