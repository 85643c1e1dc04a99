"""Judged trajectories of one policy on one set become metrics with intervals clustered by problem.

Loop rate, recovery rate and the rest follow one rule: what has no verdict lowers n and is reported; it is never a
failure. Faults that an environment injects are not the policy's and do not count against its calls.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from specs.records import Problem, Trajectory, Turn
from specs.reward import Reward
from tasks.judging.results import ProblemResult
from tasks.statistics.intervals import Interval, bounded_interval, cluster_interval, independent_size
from tasks.statistics.pass_metrics import over_problems, pass_at_k, pass_hat_k, positive_problem_rate

LOOP_LENGTH = 3
"""Identical calls in a row, or equal (call, reply) pairs, from which a trajectory counts as looping."""


def reward_range(reward: Reward, max_turns: int, seen: Iterable[float] = ()) -> tuple[float, float]:
    """Return the least and greatest reward that is possible (widened by what was seen)."""
    high = 1.0 + math.fsum(reward.soft.values()) + reward.process_cap
    lost = min(reward.process_cap, -reward.process_per_error * max_turns)
    lost += 0.0 if reward.repetition is None else reward.repetition.coef
    low = min(reward.floor, 0.0, reward.per_extra_call * max_turns + reward.on_truncation - lost)
    values = list(seen)
    return min([low, *values]), max([high, *values])


def _own_error(turn: Turn) -> bool:
    """Return whether the call failed through the policy (an injected fault is not its own)."""
    if turn.call is not None and turn.call.error is not None:
        return True
    return turn.observation is not None and turn.observation.is_error and not turn.observation.injected


def _counted(turn: Turn) -> bool:
    return turn.call is not None and not (turn.observation is not None and turn.observation.injected)


def _written(turn: Turn) -> str:
    assert turn.call is not None
    return json.dumps([turn.call.name, turn.call.arguments or turn.call.written], sort_keys=True, default=str)


def loops(trajectory: Trajectory) -> bool:
    """Return whether the same call came three times in a row, or the same call with the same reply three times."""
    turns = [t for t in trajectory.turns if t.call is not None]
    calls = [_written(t) for t in turns]
    streak = longest = 1
    for before, after in pairwise(calls):
        streak = streak + 1 if before == after else 1
        longest = max(longest, streak)
    pairs = Counter(
        (call, json.dumps(t.observation.data, sort_keys=True, default=str) if t.observation else "")
        for call, t in zip(calls, turns, strict=True)
    )
    return bool(calls) and (longest >= LOOP_LENGTH or max(pairs.values()) >= LOOP_LENGTH)


def met_error(trajectory: Trajectory) -> bool:
    """Return whether any call of the trajectory failed, for whatever reason."""
    return any(_own_error(t) or (t.observation is not None and t.observation.is_error) for t in trajectory.turns)


def problem_results(
    problems: Sequence[Problem], sampled: Sequence[Trajectory], greedy: Sequence[Trajectory], samples: int
) -> list[ProblemResult]:
    """Return one result per problem asked, in their order; a sample that never came back counts as invalid."""
    by_problem: dict[str, list[Trajectory]] = defaultdict(list)
    for t in sampled:
        by_problem[t.problem_id].append(t)
    greedily = {t.problem_id: t for t in greedy}
    known = {p.id for p in problems}
    strangers = (by_problem.keys() | greedily.keys()) - known
    if strangers:
        raise ValueError(f"trajectories of problems that were not asked: {sorted(strangers)[:3]}")
    return [_result(p, by_problem[p.id], greedily.get(p.id), samples, greedy_asked=bool(greedy)) for p in problems]


def _result(
    problem: Problem, sampled: list[Trajectory], greedy: Trajectory | None, samples: int, *, greedy_asked: bool
) -> ProblemResult:
    valid = [t for t in sampled if t.success is not None]
    run = [t for t in sampled if t.status != "infrastructure"]
    calls = [turn for t in run for turn in t.turns if _counted(turn)]
    rewards = [t.reward for t in valid if t.reward is not None]
    return ProblemResult(
        id=problem.id,
        type=problem.type,
        samples=max(samples, len(sampled)),
        valid=len(valid),
        successes=sum(bool(t.success) for t in valid),
        greedy=greedy.success if greedy else None,
        greedy_asked=greedy_asked,
        reward=math.fsum(rewards) / len(rewards) if rewards else None,
        calls=len(calls),
        worked=sum(not _own_error(t) for t in calls),
        invalid_calls=sum(t.call is not None and t.call.error is not None for t in calls),
        run=len(run),
        truncated=sum(t.status == "truncated" for t in run),
        tags=list(problem.tags),
        text=problem.text,
    )


def _described(interval: Interval | None, problems: int, scale: tuple[float, float] = (0.0, 1.0)) -> dict[str, Any]:
    if interval is None:
        return {"value": None, "low": None, "high": None, "problems": 0}
    low, width = scale[0], scale[1] - scale[0]
    return {
        "value": low + width * interval.estimate,
        "low": low + width * interval.low,
        "high": low + width * interval.high,
        "problems": problems,
    }


def _share(
    results: Sequence[ProblemResult],
    part: Callable[[ProblemResult], int],
    whole: Callable[[ProblemResult], int],
    confidence: float,
) -> dict[str, Any]:
    pairs = [(part(r), whole(r)) for r in results if whole(r) > 0]
    return _described(cluster_interval(pairs, confidence) if pairs else None, len(pairs))


def _success(results: Sequence[ProblemResult], confidence: float) -> dict[str, Any]:
    return _share(results, lambda r: r.successes, lambda r: r.valid, confidence)


def _greedy(results: Sequence[ProblemResult], confidence: float) -> dict[str, Any]:
    return _share(results, lambda r: int(bool(r.greedy)), lambda r: int(r.greedy is not None), confidence)


def _reward(results: Sequence[ProblemResult], scale: tuple[float, float], confidence: float) -> dict[str, Any]:
    valid = [r for r in results if r.reward is not None]
    if not valid:
        return _described(None, 0)
    width = scale[1] - scale[0]
    values = [min(1.0, max(0.0, ((r.reward or 0.0) - scale[0]) / width)) for r in valid]
    interval = bounded_interval(values, independent_size([r.valid for r in valid]), confidence)
    return _described(interval, len(valid), scale)


def _flagged(
    trajectories: Sequence[Trajectory], flag: Callable[[Trajectory], bool], confidence: float
) -> dict[str, Any]:
    """Return the share of trajectories with a flag, clustered by problem."""
    by_problem: dict[str, list[bool]] = defaultdict(list)
    for t in trajectories:
        by_problem[t.problem_id].append(flag(t))
    pairs = [(sum(v), len(v)) for v in by_problem.values()]
    return _described(cluster_interval(pairs, confidence) if pairs else None, len(pairs))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _slices(
    results: Sequence[ProblemResult], names: Callable[[ProblemResult], Sequence[str]], confidence: float
) -> dict[str, Any]:
    groups: dict[str, list[ProblemResult]] = defaultdict(list)
    for r in results:
        for name in names(r):
            groups[name].append(r)
    return {
        name: {"success": _success(rows, confidence), "success_greedy": _greedy(rows, confidence)}
        for name, rows in sorted(groups.items())
    }


def _passes(results: Sequence[ProblemResult]) -> dict[str, Any]:
    counts = [(r.successes, r.valid) for r in results]
    most = max((r.samples for r in results), default=0)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= most]
    found: dict[str, Any] = {"pass_at_k": {}, "pass_hat_k": {}}
    for name, metric in (("pass_at_k", pass_at_k), ("pass_hat_k", pass_hat_k)):
        for k in ks:
            mean = over_problems(metric, counts, k)
            found[name][str(k)] = {"value": mean.value, "problems": mean.problems, "left_out": mean.left_out}
    return {**found, "positive_problem_rate": positive_problem_rate(counts)}


def summarise(
    problems: Sequence[Problem],
    sampled: Sequence[Trajectory],
    greedy: Sequence[Trajectory] = (),
    *,
    samples: int = 1,
    confidence: float = 0.95,
    scale: tuple[float, float] = (-1.0, 1.0),
) -> tuple[list[ProblemResult], dict[str, Any]]:
    """Return per-problem results and the summary: `metrics`, `types`, `tags`, `counts`, `pass_at_k` and so on.

    Every metric is `{value, low, high, problems}`; value is None where nothing could be measured. `scale` is the
    range of the reward.
    """
    results = problem_results(problems, sampled, greedy, samples)
    run = [t for t in sampled if t.status != "infrastructure"]
    asked = sum(r.samples for r in results)
    valid = sum(r.valid for r in results)
    tokens = sum(t.policy_tokens for t in run)
    successes = sum(r.successes for r in results)
    metrics = {
        "success": _success(results, confidence),
        "success_greedy": _greedy(results, confidence),
        "reward": _reward(results, scale, confidence),
        "tool_success": _share(results, lambda r: r.worked, lambda r: r.calls, confidence),
        "invalid_call_rate": _share(results, lambda r: r.invalid_calls, lambda r: r.calls, confidence),
        "truncated_rate": _share(results, lambda r: r.truncated, lambda r: r.run, confidence),
        "loop_rate": _flagged(run, loops, confidence),
        "recovery_rate": _flagged(
            [t for t in run if t.success is not None and met_error(t)], lambda t: bool(t.success), confidence
        ),
    }
    greedy_asked = [r for r in results if r.greedy_asked]
    greedy_invalid = sum(r.greedy is None for r in greedy_asked)
    counts = {
        "problems": len(results),
        "asked": asked,
        "valid": valid,
        "invalid_share": (asked - valid) / asked if asked else 0.0,
        "greedy_asked": len(greedy_asked),
        "greedy_invalid_share": greedy_invalid / max(1, len(greedy_asked)),
        "status": dict(sorted(Counter(t.status for t in sampled).items())),
        "turns_mean": _mean([len(t.turns) for t in run]),
        "policy_tokens": tokens,
        "policy_tokens_mean": _mean([t.policy_tokens for t in run]),
        "tokens_per_success": tokens / successes if successes else None,
    }
    summary = {
        "metrics": metrics,
        "counts": counts,
        "types": _slices(results, lambda r: [r.type], confidence),
        "tags": _slices(results, lambda r: r.tags, confidence),
        "confidence": confidence,
        **_passes(results),
    }
    return results, summary
