"""A verifier of the user's own: a program that is given trajectory and problem as data and answers with a verdict.

An answer that is late, too long, no JSON, out of range or from a program that ended is an invalid verdict with its
reason, never a score. Faults of the infrastructure are not asked about; nor, unless declared, are cut trajectories.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specs.errors import TutelageError, VerifierError
from specs.records import Problem, Trajectory, Verdict
from specs.strict_json import parse
from specs.verifiers import ProcessVerifier as ProcessSpec
from tasks.evidence.verdicts import failed, invalid
from tasks.linechild import LineChild, LineError
from tasks.ownprogram import launch_of

_EVIDENCE_CHARACTERS = 20_000
_EXPECTED = {"pass": True, "fail": False, "invalid": None}
_SHOWN = ("id", "problem_id", "problem_type", "environment", "environment_version", "agent", "sample", "seed", "status",
          "final_state", "answer", "error", "tags")  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnCase:
    """A self-test case that the program or a file supplies."""

    about: str
    trajectory: dict[str, Any]
    problem: dict[str, Any]
    passes: bool | None


class ProcessVerifier:
    """A verifier that is a program."""

    def __init__(self, name: str, spec: ProcessSpec) -> None:
        self._name, self._spec = name, spec
        self._child = LineChild(launch_of(f"verifiers.{name}", spec), "verifier")

    @property
    def version(self) -> str:
        """Return the version of this protocol and the one that the program reports."""
        return f"process@{ProcessSpec.version}/{self._child.version}"

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        """Return the program's verdict, or an invalid one that says why there is none."""
        try:
            version = self.version
        except LineError as e:
            return invalid(self._name, f"process@{ProcessSpec.version}", str(e))
        if trajectory.status == "infrastructure":
            return invalid(self._name, version, f"infrastructure: {trajectory.error or 'no reason given'}")
        if trajectory.status == "truncated" and not self._spec.judges_cut:
            return failed(self._name, version, reason="truncated")
        return self.judge(shown(trajectory), asdict(problem))

    def judge(self, trajectory: dict[str, Any], problem: dict[str, Any]) -> Verdict:
        """Return the program's verdict on plain data."""
        try:
            answer = self._child.ask("verify", {"trajectory": trajectory, "problem": problem})
            return _verdict(self._name, self.version, answer)
        except (LineError, TypeError, ValueError, RecursionError) as e:
            return invalid(self._name, f"process@{ProcessSpec.version}", str(e))

    def own_cases(self) -> Iterator[OwnCase]:
        """Yield the cases that the program brings, then those of the declared file. VerifierError for one that is none."""
        given = self._child.greeting.get("self_test", [])
        if not isinstance(given, list):
            raise VerifierError(f"verifiers.{self._name}: hello gave a self_test that is no list")
        for number, data in enumerate(given, 1):
            yield self._case(data, f"self_test[{number}]")
        if self._spec.cases is not None:
            yield from self._filed(launch_of(self._name, self._spec).folder / self._spec.cases)

    def _filed(self, path: Path) -> Iterator[OwnCase]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise VerifierError(f"verifiers.{self._name}.cases: {path} cannot be read ({e})") from e
        for number, line in enumerate(lines, 1):
            try:
                data = parse(line)
            except ValueError as e:
                raise VerifierError(f"{path}:{number}: no JSON ({e}); expected one self-test case a line") from e
            yield self._case(data, f"{path.name}:{number}")

    def _case(self, data: Any, where: str) -> OwnCase:
        expect = data.get("expect") if isinstance(data, dict) else None
        if not isinstance(expect, str) or expect not in _EXPECTED:
            raise VerifierError(
                f"verifiers.{self._name}: {where} is no case; expected about, trajectory, problem and expect "
                "(pass, fail or invalid)"
            )
        trajectory, problem = data.get("trajectory", {}), data.get("problem", {})
        if not isinstance(trajectory, dict) or not isinstance(problem, dict):
            raise VerifierError(f"verifiers.{self._name}: {where}: trajectory and problem are objects")
        blank = {"id": "self-test", "status": "finished", "turns": [], "final_state": None, "answer": None, "tags": []}
        return OwnCase(
            str(data.get("about", where)), {**blank, **trajectory}, {"id": "self-test", "expected": {}, **problem},
            _EXPECTED[expect],
        )  # fmt: skip

    def close(self) -> None:
        """End the program."""
        self._child.close()


def own_failures(name: str, spec: ProcessSpec) -> list[str]:
    """Return what the program gets wrong of its own cases; at least one must pass and one must fail."""
    verifier = ProcessVerifier(name, spec)
    try:
        cases = list(verifier.own_cases())
        failures = [
            f"{case.about}: got passed={verdict.passed}, invalid={verdict.invalid!r}"
            for case in cases
            if (verdict := verifier.judge(case.trajectory, case.problem)).passed is not case.passes
            or (verdict.invalid is None) != (case.passes is not None)
        ]
        for wanted, word in ((True, "pass"), (False, "fail")):
            if not any(c.passes is wanted for c in cases):
                failures.append(f"no case that must {word}; add one to the program's self_test or to `cases`")
        return failures
    except TutelageError as e:
        return [str(e)]
    finally:
        verifier.close()


def shown(trajectory: Trajectory) -> dict[str, Any]:
    """Return what a program is told of a trajectory: turns, state and answer, no tokens."""
    turns = [
        {
            "text": t.text,
            "finish": t.finish,
            "call": None if t.call is None else asdict(t.call),
            "observation": None if t.observation is None else asdict(t.observation),
        }
        for t in trajectory.turns
    ]
    return {**{name: getattr(trajectory, name) for name in _SHOWN}, "turns": turns}


def _verdict(name: str, version: str, answer: dict[str, Any]) -> Verdict:
    """Return the verdict in an answer. ValueError where it holds none."""
    reason = answer.get("invalid")
    if reason is not None:
        if not isinstance(reason, str) or not reason:
            raise ValueError(f"an answer with invalid {reason!r}, expected the reason in words")
        return invalid(name, version, reason[:2000])
    score, passed, evidence = answer.get("score"), answer.get("passed"), answer.get("evidence", {})
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ValueError(f"the score is {str(score)[:100]}, expected a number from 0 to 1")
    if not isinstance(passed, bool):
        raise TypeError(f"passed is {str(passed)[:100]!r}, expected true or false")
    if not isinstance(evidence, dict) or len(json.dumps(evidence)) > _EVIDENCE_CHARACTERS:
        raise ValueError(f"the evidence is no object of at most {_EVIDENCE_CHARACTERS} characters")
    return Verdict(name, version, float(score), passed, evidence)
