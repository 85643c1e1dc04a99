"""Verdicts as verifiers give them, and the trajectories that no verifier may judge."""

from typing import Any

from specs.records import Trajectory, Verdict


def passed(name: str, version: str, score: float = 1.0, **evidence: Any) -> Verdict:
    """Return a verdict that passed."""
    return Verdict(name, version, score, True, evidence)


def failed(name: str, version: str, score: float = 0.0, **evidence: Any) -> Verdict:
    """Return a verdict that failed."""
    return Verdict(name, version, score, False, evidence)


def invalid(name: str, version: str, reason: str) -> Verdict:
    """Return a verdict that could not be reached; it is never a score."""
    return Verdict(name, version, None, None, invalid=reason)


def settled(name: str, version: str, trajectory: Trajectory) -> Verdict | None:
    """Return the verdict of a trajectory whose status alone decides, else None.

    A fault of the infrastructure is not the policy's: invalid. A trajectory cut for length did not end: it fails.
    """
    if trajectory.status == "infrastructure":
        return invalid(
            name, version, f"infrastructure: {trajectory.error or 'the episode could not be run to its end'}"
        )
    if trajectory.status == "truncated":
        return failed(name, version, reason="truncated")
    return None
