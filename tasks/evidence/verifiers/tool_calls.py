"""The calls made equal the expected calls, by value and type. Order may matter, multiplicity always does.

The calls are those of the sealed final state (`{"calls": [{"name", "arguments"}]}`) where the environment keeps them,
else those of the turns that could be used. A problem expects `{"calls": [{"name", "arguments": {name: [allowed …]},
"required": [name …]}]}`. A partial score reads the calls as they were written, those that could not be used included.
"""

from typing import Any

from specs.records import Problem, Trajectory, Verdict
from specs.verifiers import ToolCalls
from tasks.evidence.compare import call_difference, call_share
from tasks.evidence.verdicts import failed, invalid, passed, settled

MOST_PARTIAL = 0.99
"""Most that a failure scores."""


class ToolCallsVerifier:
    """Matches each call with one expected call."""

    version = f"tool_calls@{ToolCalls.version}"

    def __init__(self, name: str, spec: ToolCalls) -> None:
        self._name, self._spec = name, spec

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        """Return the verdict; its evidence names the first difference."""
        name, version = self._name, self.version
        if (verdict := settled(name, version, trajectory)) is not None:
            return verdict
        expected = problem.expected.get("calls")
        if not isinstance(expected, list):
            return invalid(name, version, "the problem has no expected calls")
        try:
            difference = self._difference(_calls(trajectory), expected)
            if difference is None:
                return passed(name, version)
            return failed(name, version, self._share(trajectory, expected) if self._spec.partial else 0.0, **difference)
        except RecursionError:
            return failed(name, version, reason="nested too deep")

    def _share(self, trajectory: Trajectory, expected: list[dict[str, Any]]) -> float:
        """Return the share of the written calls that is right, below 1; a call too many or too few has none."""
        written = [{"name": t.call.name, "arguments": t.call.arguments} for t in trajectory.turns if t.call is not None]
        if self._spec.order:
            shares = [call_share(c, e) for c, e in zip(written, expected, strict=False)]
        else:
            shares: list[float] = []
            left = list(expected)
            for call in written[: len(expected)]:
                best = max(left, key=lambda e: call_share(call, e))
                shares.append(call_share(call, best))
                left.remove(best)
        return min(sum(shares) / max(len(written), len(expected), 1), MOST_PARTIAL)

    def _difference(self, calls: list[Any], expected: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return why the calls are not the expected ones, or None where they are."""
        if len(calls) != len(expected):
            reason = "extra_call" if len(calls) > len(expected) else "missing_call"
            return {"reason": reason, "expected": len(expected), "found": len(calls)}
        if self._spec.order or len(calls) == 1:
            pairs = zip(calls, expected, strict=True)
            return next((d for c, e in pairs if (d := call_difference(c, e)) is not None), None)
        fits = [[j for j, e in enumerate(expected) if call_difference(c, e) is None] for c in calls]
        unmatched = _unmatched(fits)
        return None if unmatched is None else {"reason": "no_counterpart", "call": unmatched}


def _calls(trajectory: Trajectory) -> list[Any]:
    state = trajectory.final_state
    if isinstance(state, dict) and isinstance(state.get("calls"), list):
        return state["calls"]
    usable = (t.call for t in trajectory.turns if t.call is not None and t.call.error is None)
    return [{"name": c.name, "arguments": c.arguments} for c in usable]


def _unmatched(fits: list[list[int]]) -> int | None:
    """Return the first call for which no expected call is left however the others are matched, or None."""
    taken: dict[int, int] = {}

    def place(call: int, tried: set[int]) -> bool:
        for slot in fits[call]:
            if slot not in tried:
                tried.add(slot)
                if slot not in taken or place(taken[slot], tried):
                    taken[slot] = call
                    return True
        return False

    return next((call for call in range(len(fits)) if not place(call, set())), None)
