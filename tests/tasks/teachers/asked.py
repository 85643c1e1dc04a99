"""Questions for tests of teachers, small and all different."""

from pathlib import Path
from typing import Any

from specs.records import Problem, ToolCall, Trajectory, Turn
from specs.teachers import OpenAITeacher
from tasks.teachers.asks import Ask
from tasks.teachers.client_openai import OpenAIClient, Setting
from tasks.teachers.ledger import CallLedger

KEY = "sk-canary-0123456789"
GOOD = '{"score": {"right": 8}}'


def problem(number: int = 0, kind: str = "stock") -> Problem:
    return Problem(f"p{number}", "desk", kind, "train", f"question {number}", {}, {})


def trajectory(number: int = 0, *, success: bool = True, kind: str = "stock") -> Trajectory:
    call = ToolCall("finish", {"answer": number}, "finish")
    return Trajectory(
        id=f"t{number}", problem_id=f"p{number}", problem_type=kind, environment="desk", environment_version="1",
        agent="tool_loop", group=f"p{number}", sample=0, seed=1, ids=[1], sources=[2], logprobs=[0.0],
        policy_versions=[("v", 1)], turns=[Turn(0, 1, f"answer {number}", call, None)], status="finished", sampling={},
        success=success, reward=1.0 if success else 0.0,
    )  # fmt: skip


def asks(count: int, *, sample: int = 0) -> list[Ask]:
    return [Ask("score", problem(i), (), (trajectory(i),), dimensions=("right",), sample=sample) for i in range(count)]


def teacher(url: str, **more: Any) -> OpenAITeacher:
    limits = {"wait_seconds": 0.01, "deadline_seconds": 5, **more.pop("limits", {})}
    given = {"kind": "openai", "model": "m", "base_url": url, "gives": ["score"], "limits": limits, **more}
    return OpenAITeacher.model_validate(given)


def client(folder: Path, spec: OpenAITeacher, **more: Any) -> OpenAIClient:
    setting = Setting(CallLedger(folder / "calls.jsonl"), "node", more.pop("environ", {"KEY": KEY}), **more)
    return OpenAIClient("closed", spec, setting)
