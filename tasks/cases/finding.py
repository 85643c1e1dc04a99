"""From judged trajectories to cases: every failure is attributed, and what is nobody's failure is counted apart."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specs.flywheel import Cause
from specs.records import BadCase, Demonstration, Problem, Trajectory
from tasks.boundary import Failure, boundary
from tasks.cases.attribution import Finding, attribute
from tasks.cases.triage import confirmation, standing
from tasks.episodes.seeds import world_seed
from tasks.protocols import Environment
from tasks.statistics.intervals import Interval, cluster_interval, wilson


@dataclass(frozen=True, slots=True)
class Source:
    """Where trajectories come from."""

    program: str
    round: int
    set: str
    role: str


@dataclass(slots=True)
class Found:
    """Cases of one set, and what the trajectories came to."""

    cases: list[BadCase] = field(default_factory=list[BadCase])
    apart: Counter[str] = field(default_factory=Counter[str])
    """`infrastructure` and `verifier`: trajectories without a verdict, which are no failures of the policy."""
    judged: Counter[str] = field(default_factory=Counter[str])
    """Problem -> trajectories with a verdict."""
    types: dict[str, str] = field(default_factory=dict[str, str])
    """Problem -> type."""
    without_clerk: int = 0
    """Failures attributed without the clerk's run, because the world is gone or the clerk could not be run."""

    def share(self, cause: Cause | None = None) -> Interval | None:
        """Return the share of judged trajectories that failed (for a cause), clustered by problem."""
        failed = Counter(c.problem_id for c in self.cases if cause is None or c.cause == cause)
        pairs = [(failed[p], n) for p, n in self.judged.items()]
        return cluster_interval(pairs) if pairs else None

    def figures(self) -> dict[str, Any]:
        """Return plain data: failures by cause with the interval of their share, and counts by type."""
        causes: Counter[Cause] = Counter(c.cause for c in self.cases)
        by_type: dict[str, Any] = {}
        for kind in sorted(set(self.types.values())):
            of_type = Counter(c.cause for c in self.cases if c.problem_type == kind)
            judged = sum(n for p, n in self.judged.items() if self.types[p] == kind)
            by_type[kind] = {"judged": judged, "failures": of_type.total(), "causes": dict(sorted(of_type.items()))}
        return {
            "problems": len(self.types),
            "judged": self.judged.total(),
            "failures": len(self.cases),
            "confirmed": sum(c.status == "confirmed" for c in self.cases),
            "apart": dict(sorted(self.apart.items())),
            "without_clerk": self.without_clerk,
            "causes": {cause: self._figure(cause, n) for cause, n in sorted(causes.items())},
            "types": by_type,
        }

    def _figure(self, cause: Cause, count: int) -> dict[str, Any]:
        found = self.share(cause)
        assert found is not None, "a cause has a judged trajectory"
        part = wilson(count, len(self.cases))
        return {
            "count": count,
            "share": found.estimate,
            "low": found.low,
            "high": found.high,
            "of_failures": part.estimate,
            "of_failures_low": part.low,
            "of_failures_high": part.high,
        }


def find_cases(
    source: Source,
    trajectories: Iterable[Trajectory],
    problems: Mapping[str, Problem],
    environments: Mapping[str, Environment],
    deciding: Iterable[str],
) -> Found:
    """Return the cases among judged trajectories. `deciding` are the verifiers that make up success."""
    found, names = Found(), list(deciding)
    for trajectory in trajectories:
        found.types[trajectory.problem_id] = trajectory.problem_type
        became = standing(trajectory)
        if became in ("infrastructure", "verifier"):
            found.apart[became] += 1
            continue
        found.judged[trajectory.problem_id] += 1
        if became == "failed":
            problem = problems.get(trajectory.problem_id)
            reference = _reference(trajectory, problem, environments)
            found.without_clerk += reference is None
            finding = attribute(trajectory, problem, reference)
            found.cases.append(_case(source, trajectory, finding, confirmation(trajectory, names)))
    return found


def _reference(
    trajectory: Trajectory, problem: Problem | None, environments: Mapping[str, Environment]
) -> Demonstration | None:
    """Return what the clerk does in the very same world; None where that world is gone or of another version."""
    environment = environments.get(trajectory.environment)
    if problem is None or environment is None or environment.version != trajectory.environment_version:
        return None
    seed = world_seed(trajectory.seed)
    made = boundary(f"{trajectory.environment} clerk", lambda: environment.demonstrate(problem, seed))
    return None if isinstance(made, Failure) else made


def _case(source: Source, trajectory: Trajectory, finding: Finding, confirmed: str | None) -> BadCase:
    policy = trajectory.policy_versions[0][0] if trajectory.policy_versions else ""
    digest = hashlib.sha256(f"{policy}\n{trajectory.id}\n{trajectory.seed}".encode()).hexdigest()[:8]
    return BadCase(
        id=f"{source.set}/{trajectory.problem_id}/{digest}",
        program=source.program,
        set=source.set,
        role=source.role,
        environment=trajectory.environment,
        problem_id=trajectory.problem_id,
        problem_type=trajectory.problem_type,
        trajectory_id=trajectory.id,
        policy=policy,
        status="suspected" if confirmed is None else "confirmed",
        confirmed_by=confirmed,
        cause=finding.cause,
        confidence=finding.confidence,
        evidence=finding.evidence,
        first_wrong_turn=finding.turn,
        round=source.round,
    )
