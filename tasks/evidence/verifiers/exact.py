"""The final answer equals the expected one, character by character."""

from specs.records import Problem, Trajectory, Verdict
from specs.verifiers import ExactAnswer
from tasks.evidence.compare import shown
from tasks.evidence.verdicts import failed, invalid, passed, settled


class ExactAnswerVerifier:
    """Compares `trajectory.answer` with `problem.expected["answer"]`; white space at the ends may be ignored."""

    version = f"exact@{ExactAnswer.version}"

    def __init__(self, name: str, spec: ExactAnswer) -> None:
        self._name, self._spec = name, spec

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        """Return the verdict; a problem without an expected answer is invalid."""
        name, version = self._name, self.version
        if (verdict := settled(name, version, trajectory)) is not None:
            return verdict
        expected, found = problem.expected.get("answer"), trajectory.answer
        if not isinstance(expected, str):
            return invalid(name, version, "the problem has no expected answer")
        if not isinstance(found, str):
            return failed(name, version, reason="no answer", expected=expected)
        same = found.strip() == expected.strip() if self._spec.strip else found == expected
        return (
            passed(name, version)
            if same
            else failed(name, version, reason="answer", expected=expected, found=shown(found))
        )
