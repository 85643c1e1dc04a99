"""What became of a trajectory, and whether a failure is confirmed.

A failure is suspected until a deterministic verifier says so with evidence, or a person does. Faults of the
infrastructure and missing verdicts are nobody's failure: they are counted apart and never become cases.
"""

from collections.abc import Iterable
from typing import Literal

from specs.records import Trajectory

Standing = Literal["solved", "failed", "infrastructure", "verifier"]
DETERMINISTIC = ("environment_state", "tool_trace", "tool_calls", "exact")
"""Kinds of verifiers whose verdict is a fact. What a model or a foreign program says only raises a suspicion."""


def standing(trajectory: Trajectory) -> Standing:
    """Return what became of a trajectory; `verifier` where no verdict was reached."""
    if trajectory.status == "infrastructure":
        return "infrastructure"
    if trajectory.success is None:
        return "verifier"
    return "solved" if trajectory.success else "failed"


def confirmation(trajectory: Trajectory, deciding: Iterable[str]) -> str | None:
    """Return the verifier that confirms a failure, as `name kind@version`; None where none of `deciding` does."""
    names = set(deciding)
    for verdict in trajectory.verdicts:
        kind = verdict.version.partition("@")[0]
        failed = verdict.invalid is None and verdict.passed is False
        if failed and verdict.verifier in names and kind in DETERMINISTIC and verdict.evidence:
            return f"{verdict.verifier} {verdict.version}"
    return None
