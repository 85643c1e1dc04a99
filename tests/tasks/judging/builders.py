"""Small evaluations and trajectories for tests of judging."""

from collections.abc import Iterable
from typing import Any

from specs.records import Observation, Problem, ToolCall, Trajectory, Turn
from tasks.judging.results import Evaluated, ProblemResult


def evaluated(
    right: Iterable[int | None],
    *,
    digest: str = "d" * 64,
    name: str = "hidden",
    samples: int = 1,
    greedy: Iterable[bool | None] | None = None,
    prefix: str = "p",
) -> Evaluated:
    """Return an evaluation with that many successes by problem; None is a problem without a verdict."""
    right = list(right)
    tries = list(greedy) if greedy is not None else [None] * len(right)
    problems = {}
    for i, (k, g) in enumerate(zip(right, tries, strict=True)):
        valid = 0 if k is None else samples
        problems[f"{prefix}{i}"] = ProblemResult(
            id=f"{prefix}{i}",
            type="move",
            samples=samples,
            valid=valid,
            successes=k or 0,
            greedy=g,
            greedy_asked=greedy is not None,
            reward=None if k is None else 2.0 * (k / samples) - 1.0,
            calls=4,
            worked=3,
            invalid_calls=1,
            run=samples,
            truncated=0,
        )
    return Evaluated(digest, name, "hidden", samples, 1.0, greedy is not None, (-1.0, 1.0), problems)


def pair(both: int, solved: int, broken: int, neither: int) -> tuple[Evaluated, Evaluated]:
    """Return (candidate, baseline) with these counts of paired outcomes."""
    new = [1] * both + [1] * solved + [0] * broken + [0] * neither
    old = [1] * both + [0] * solved + [1] * broken + [0] * neither
    return evaluated(new, digest="c" * 64), evaluated(old, digest="b" * 64)


def problem(number: int, kind: str = "move", tags: list[str] | None = None) -> Problem:
    return Problem(f"p{number}", "desk", kind, "hidden", f"do {number}", {}, {}, tags or [])


def trajectory(number: int, *, success: bool | None = True, **changes: Any) -> Trajectory:
    """Return a trajectory of one good call; `calls` replaces it by (call, observation) pairs."""
    calls = changes.pop("calls", [(call("get", order=number), Observation({"ok": True}, done=True))])
    turns = [Turn(2 * i, 2 * i + 2, c.written if c else "", c, o) for i, (c, o) in enumerate(calls)]
    plain: dict[str, Any] = {
        "id": f"p{number}/0", "problem_id": f"p{number}", "problem_type": "move", "environment": "desk",
        "environment_version": "1", "agent": "tool_loop", "group": f"p{number}", "sample": 0, "seed": 1,
        "ids": [1] * (2 * len(turns)), "sources": [2] * (2 * len(turns)), "logprobs": [-0.1] * (2 * len(turns)),
        "policy_versions": [("v", 2 * len(turns))], "turns": turns, "status": "finished", "sampling": {},
        "success": success, "reward": None if success is None else (1.0 if success else 0.0),
    }  # fmt: skip
    return Trajectory(**{**plain, **changes})


def call(name: str, error: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, f"{name} {arguments}", error)
