"""Rules over the calls of a trajectory: forbidden events, a bound on errors, else the share of calls that worked."""

from specs.records import Problem, Trajectory, Turn, Verdict
from specs.verifiers import ToolTrace
from tasks.evidence.verdicts import failed, invalid, passed


class ToolTraceVerifier:
    """Judges what did happen, so a cut trajectory is judged too. Injected faults are nobody's error."""

    version = f"tool_trace@{ToolTrace.version}"

    def __init__(self, name: str, spec: ToolTrace) -> None:
        self._name, self._spec = name, spec

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        """Return the verdict: failed for a forbidden event or too many errors, else the share that worked."""
        name, version = self._name, self.version
        if trajectory.status == "infrastructure":
            return invalid(name, version, f"infrastructure: {trajectory.error or 'no reason given'}")
        for number, turn in enumerate(trajectory.turns):
            if turn.observation is not None and turn.observation.event in self._spec.forbid:
                return failed(name, version, reason="forbidden_event", event=turn.observation.event, turn=number)
        calls = [t for t in trajectory.turns if not (t.observation is not None and t.observation.injected)]
        errors = sum(_went_wrong(t) for t in calls)
        if self._spec.max_errors is not None and errors > self._spec.max_errors:
            return failed(name, version, reason="errors", errors=errors, allowed=self._spec.max_errors)
        score = (len(calls) - errors) / len(calls) if calls else 0.0
        return passed(name, version, score, calls=len(calls), errors=errors)


def _went_wrong(turn: Turn) -> bool:
    """Return whether a turn holds no usable call, or one that the environment refused."""
    return turn.call is None or turn.call.error is not None or (turn.observation is None or turn.observation.is_error)
