"""The verifiers' self-tests: each kind accepts, rejects, is not fooled, and bears an empty trajectory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from specs.records import Observation, Problem, Status, ToolCall, Trajectory, Turn
from specs.verifiers import (
    EnvironmentState,
    ExactAnswer,
    ProcessVerifier,
    RewardModelVerifier,
    ToolCalls,
    ToolTrace,
    Verifier,
)
from tasks.evidence.verifiers import build


@dataclass(frozen=True, slots=True)
class Case:
    """A trajectory and whether it must pass; None: the verdict must be invalid."""

    about: str
    trajectory: Trajectory
    expected: dict[str, Any]
    passes: bool | None


def self_test(name: str, spec: Verifier, model: Path | None = None) -> list[str]:
    """Return what the verifier gets wrong, one sentence each; an empty list is a pass."""
    if isinstance(spec, ProcessVerifier):
        from tasks.evidence.verifiers.process import own_failures

        return own_failures(name, spec)
    verifier = build(name, spec, model)
    failures: list[str] = []
    if isinstance(spec, RewardModelVerifier):
        from tasks.evidence.verifiers.reward_model import LearntVerifier

        failures += verifier.failures() if isinstance(verifier, LearntVerifier) else []
    for case in cases(spec):
        problem = Problem("self-test", "self-test", "self-test", "train", "", {}, case.expected)
        verdict = verifier.verify(case.trajectory, problem)
        if verdict.passed is not case.passes or (verdict.invalid is None) != (case.passes is not None):
            failures.append(f"{case.about}: got passed={verdict.passed}, invalid={verdict.invalid!r}")
        elif verdict.score is not None and not 0.0 <= verdict.score <= 1.0:
            failures.append(f"{case.about}: the score {verdict.score} is outside [0, 1]")
    return failures


def cases(spec: Verifier) -> Iterator[Case]:
    """Yield the cases of a kind: accept, reject, adversarial, empty, and the fault that is nobody's."""
    match spec:
        case EnvironmentState():
            yield from _state_cases(spec)
        case ToolTrace():
            yield from _trace_cases(spec)
        case ToolCalls():
            yield from _call_cases(spec)
        case ExactAnswer():
            yield from _answer_cases()
        case RewardModelVerifier():
            yield Case("bear an empty trajectory", episode(), {}, None)
            yield Case("reject a cut episode", episode(status="truncated"), {}, False)
        case ProcessVerifier():
            raise ValueError("a program brings its own cases: own_failures")
        case _:
            assert_never(spec)
    yield Case("infrastructure fault", episode(status="infrastructure"), {"state": {}, "answer": "", "calls": []}, None)


def episode(
    *turns: Turn, state: dict[str, Any] | None = None, answer: str | None = None, status: Status = "finished"
) -> Trajectory:
    """Return a trajectory without tokens."""
    return Trajectory(
        id="self-test", problem_id="self-test", problem_type="self-test", environment="self-test",
        environment_version="self-test", agent="self-test", group="self-test", sample=0, seed=0, ids=[], sources=[],
        logprobs=[], policy_versions=[], turns=list(turns), status=status, sampling={}, final_state=state,
        answer=answer,
    )  # fmt: skip


def turn(observation: Observation, name: str = "act", **arguments: Any) -> Turn:
    """Return one turn with a call."""
    return Turn(0, 0, "", ToolCall(name, arguments, written=""), observation)


def _state_cases(spec: EnvironmentState) -> Iterator[Case]:
    want = {"state": {"order": {"7": "open"}, "count": 1}, "answer": None}
    same, other = {"order": {"7": "open"}, "count": 1}, {"order": {"7": "cancelled"}, "count": 1}
    yield Case("accept the expected state", episode(state=same), want, True)
    yield Case("reject another state", episode(state=other), want, False)
    yield Case("reject more than the expected state", episode(state={**same, "mail": []}), want, False)
    yield Case("a claim in the answer is no evidence", episode(state=other, answer="order 7 is open"), want, False)
    yield Case("a switch is no number", episode(state={**same, "count": True}), want, False)
    yield Case("reject a cut episode", episode(state=same, status="truncated"), want, False)
    yield Case("no final state", episode(), want, None)
    yield Case("reject an empty state", episode(state={}), want, False)
    asked = {**want, "answer": "yes"}
    yield Case("accept the answer", episode(state=same, answer="yes"), asked, True)
    yield Case("another answer", episode(state=same, answer="no"), asked, not spec.answer)
    yield Case("no answer", episode(state=same), asked, not spec.answer)


def _trace_cases(spec: ToolTrace) -> Iterator[Case]:
    good, bad = turn(Observation({})), turn(Observation({}, is_error=True))
    yield Case("accept calls that worked", episode(good, good), {}, True)
    yield Case("bear an empty trace", episode(), {}, True)
    struck = turn(Observation({}, is_error=True, injected=True))
    yield Case("an injected fault is nobody's error", episode(good, *[struck] * 9), {}, True)
    for event in spec.forbid:
        broken = turn(Observation({}, event=event))
        yield Case(f"reject {event}", episode(good, broken), {}, False)
        yield Case(f"reject {event} in a cut episode", episode(broken, good, status="truncated"), {}, False)
    if spec.max_errors is not None:
        yield Case("accept as many errors as allowed", episode(good, *[bad] * spec.max_errors), {}, True)
        yield Case("reject one error more", episode(good, *[bad] * (spec.max_errors + 1)), {}, False)


def _call_cases(spec: ToolCalls) -> Iterator[Case]:
    def made(*calls: dict[str, Any]) -> Trajectory:
        return episode(state={"calls": list(calls)})

    def lookup(city: Any, n: Any) -> dict[str, Any]:
        return {"name": "lookup", "arguments": {"n": n, "city": city}}

    one = {"name": "lookup", "arguments": {"city": ["Café"], "n": [1]}, "required": ["city", "n"]}
    two = {"name": "lookup", "arguments": {"city": ["Bern"], "n": [1]}, "required": ["city", "n"]}
    yield Case("accept the expected call", made(lookup("Café", 1)), {"calls": [one]}, True)
    text = {"name": "lookup", "arguments": '{"city":"Caf\\u00e9","n":1}'}
    yield Case("accept arguments as JSON text", made(text), {"calls": [one]}, True)
    yield Case("reject another type", made(lookup("Café", "1")), {"calls": [one]}, False)
    yield Case("a switch is no number", made(lookup("Café", True)), {"calls": [one]}, False)
    repeated = {"name": "lookup", "arguments": '{"city":"Café","n":1,"n":2}'}
    yield Case("reject a repeated key", made(repeated), {"calls": [one]}, False)
    yield Case("reject an extra call", made(lookup("Café", 1), lookup("Bern", 1)), {"calls": [one]}, False)
    yield Case("[a, a] is not [a, b]", made(lookup("Café", 1), lookup("Café", 1)), {"calls": [one, two]}, False)
    swapped = made(lookup("Bern", 1), lookup("Café", 1))
    yield Case("two calls in the other order", swapped, {"calls": [one, two]}, not spec.order)
    yield Case("reject no call", made(), {"calls": [one]}, False)


def _answer_cases() -> Iterator[Case]:
    want = {"answer": "yes"}
    yield Case("accept the answer", episode(answer="yes"), want, True)
    yield Case("reject another answer", episode(answer="no"), want, False)
    yield Case("an answer within a sentence is not the answer", episode(answer="yes and no"), want, False)
    yield Case("reject no answer", episode(), want, False)
    yield Case("reject an empty answer", episode(answer=""), want, False)
    yield Case("a problem that asks for no answer", episode(answer="yes"), {"answer": None}, None)
