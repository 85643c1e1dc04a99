"""What an evaluation leaves behind, and reading it back without trusting it.

A folder holds `metrics.json` (summary and digests), `problems.jsonl` (one `ProblemResult` a line) and shards of the
trajectories. `metrics.json` names every other file with its sha256: evidence that is cut, edited or incomplete is
refused by name.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from specs.errors import DataError
from specs.strict_json import parse
from tasks.files import sha256_file, write_durable

FORMAT = 1
PROBLEMS = "problems.jsonl"
METRICS = "metrics.json"


@dataclass(slots=True)
class ProblemResult:
    """How one problem went. Samples without a verdict are not in `valid`; they lower n and are never failures."""

    id: str
    type: str
    samples: int
    """Sampled trajectories asked for."""
    valid: int
    successes: int
    greedy: bool | None = None
    """Success of the greedy try; None where it was not asked or has no verdict."""
    greedy_asked: bool = False
    reward: float | None = None
    """Mean reward of the valid samples."""
    calls: int = 0
    worked: int = 0
    """Calls that were well formed and met no tool error; calls struck by an injected fault are not counted at all."""
    invalid_calls: int = 0
    run: int = 0
    """Samples that were not lost to infrastructure."""
    truncated: int = 0
    tags: list[str] = field(default_factory=list)
    text: str = ""
    """What the user asked, so that a list of changed problems can be read."""


@dataclass(slots=True)
class Evaluated:
    """One policy on one set."""

    policy_digest: str
    set: str
    role: str
    samples: int
    temperature: float
    greedy: bool
    reward_range: tuple[float, float]
    problems: dict[str, ProblemResult]
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unusable:
    """Evidence that is missing or damaged, and why."""

    reason: str


def _refuse(folder: Path, found: str) -> NoReturn:
    raise DataError(f"{folder}: {found}; expected a complete evaluation; run the evaluation again")


def write_evaluation(folder: Path, problems: list[ProblemResult], summary: dict[str, Any]) -> dict[str, Any]:
    """Write both files; every file that already lies in `folder` is named with its digest. Return what was written."""
    lines = "".join(json.dumps(asdict(p), sort_keys=True, allow_nan=False) + "\n" for p in problems)
    write_durable(folder / PROBLEMS, lines)
    files = {
        p.relative_to(folder).as_posix(): sha256_file(p)
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != METRICS and p.relative_to(folder).parts[0] != "notes"
    }
    whole = {"format": FORMAT, **summary, "problems_asked": len(problems), "files": files}
    text = json.dumps(whole, indent=1, sort_keys=True, allow_nan=False)
    write_durable(folder / METRICS, text + "\n")
    return whole


def read_evaluation(folder: Path) -> Evaluated:
    """Return the evaluation in `folder`; DataError names what is missing, damaged or inconsistent."""
    summary = _read_summary(folder)
    for name, digest in summary["files"].items():
        path = folder / name
        if not path.is_file():
            _refuse(folder, f"{name} is missing")
        if sha256_file(path) != digest:
            _refuse(folder, f"{name} is damaged (its sha256 is not the recorded one)")
    problems = _read_problems(folder, summary)
    return Evaluated(
        policy_digest=summary["policy_digest"],
        set=summary["set"],
        role=summary["role"],
        samples=summary["samples"],
        temperature=summary["temperature"],
        greedy=summary["greedy"],
        reward_range=tuple(summary["reward_range"]),
        problems=problems,
        metrics=summary,
    )


def try_evaluation(folder: Path | None) -> Evaluated | Unusable:
    """Return the evaluation, or why it cannot be used."""
    if folder is None:
        return Unusable("no evaluation was handed in")
    try:
        return read_evaluation(folder)
    except DataError as e:
        return Unusable(str(e))


def _read_summary(folder: Path) -> dict[str, Any]:
    path = folder / METRICS
    if not path.is_file():
        _refuse(folder, f"{METRICS} is missing")
    try:
        summary = parse(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as e:
        _refuse(folder, f"{METRICS} is damaged ({e})")
    if not isinstance(summary, dict) or summary.get("format") != FORMAT:
        _refuse(folder, f"{METRICS} is not of format {FORMAT}")
    wanted = {
        "policy_digest": str, "set": str, "role": str, "samples": int, "temperature": (int, float),
        "greedy": bool, "reward_range": list, "problems_asked": int, "files": dict,
    }  # fmt: skip
    for key, kind in wanted.items():
        if not isinstance(summary.get(key), kind):
            _refuse(folder, f"{METRICS} has no usable {key!r}")
    if PROBLEMS not in summary["files"]:
        _refuse(folder, f"{METRICS} names no {PROBLEMS}")
    return summary


def _read_problems(folder: Path, summary: dict[str, Any]) -> dict[str, ProblemResult]:
    problems: dict[str, ProblemResult] = {}
    lines = (folder / PROBLEMS).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            result = ProblemResult(**parse(line))
        except (ValueError, TypeError) as e:
            _refuse(folder, f"{PROBLEMS} line {number} is damaged ({e})")
        if not 0 <= result.successes <= result.valid <= result.samples or result.id in problems:
            _refuse(folder, f"{PROBLEMS} line {number} does not add up ({result.id!r})")
        problems[result.id] = result
    if len(problems) != summary["problems_asked"]:
        _refuse(folder, f"{PROBLEMS} has {len(problems)} of {summary['problems_asked']} problems")
    return problems
