"""The sealed final state equals the expected one, and the answer too where the problem asks for one.

An episode that ran into its turn limit never said that it was done: it fails, whatever the state.
"""

from specs.records import Problem, Trajectory, Verdict
from specs.verifiers import EnvironmentState
from tasks.evidence.compare import differences, same_json, shown
from tasks.evidence.verdicts import failed, invalid, passed, settled


class EnvironmentStateVerifier:
    """Compares with `problem.expected["state"]` and, where it is not None, `problem.expected["answer"]`."""

    version = f"environment_state@{EnvironmentState.version}"

    def __init__(self, name: str, spec: EnvironmentState) -> None:
        self._name, self._spec = name, spec

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        """Return the verdict; a missing final state or expectation is invalid, never a score."""
        name, version = self._name, self.version
        if (verdict := settled(name, version, trajectory)) is not None:
            return verdict
        if trajectory.status == "turn_limit":
            return failed(name, version, reason="turn_limit")
        expected = problem.expected.get("state")
        if not isinstance(expected, dict):
            return invalid(name, version, "the problem has no expected state")
        if trajectory.final_state is None:
            return invalid(name, version, "the trajectory has no final state")
        try:
            if not same_json(trajectory.final_state, expected):
                return failed(name, version, reason="state", differences=differences(expected, trajectory.final_state))
        except RecursionError:
            return failed(name, version, reason="state nested too deep")
        answer = problem.expected.get("answer")
        if self._spec.answer and answer is not None and trajectory.answer != answer:
            return failed(name, version, reason="answer", expected=answer, found=shown(trajectory.answer))
        return passed(name, version)
