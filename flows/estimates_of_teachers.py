"""Expected calls and dollars of asking teachers. Pure arithmetic, torch-free; the worst case where it depends."""

from collections.abc import Mapping
from typing import Any

from flows.estimates import PROCESS_GB, Estimate, Sizes

_INSTRUCTION = 450
"""Tokens of an instruction and of the frame around what is asked."""
_TOOLS = 250
"""Tokens of a problem's tools."""
_ANSWER = {"score": 60, "rank": 40, "critique": 200, "action": 120, "sample": 200}
_SECONDS = 2.0
"""Of one call."""


def calls(params: Mapping[str, Any], sizes: Sizes) -> float:
    """Return how many questions there are at most."""
    asking, drawn, known = params["asking"], params["drawn"], sizes.count(params["data"])
    problems = min(drawn["problems"] or known, known) if known else drawn["problems"] or 0
    match params["signal"]:
        case "rank":
            return problems * (2 if asking["swaps"] else 1)
        case "sample":
            return problems * min(asking["per_problem"], drawn["samples"]) * asking.get("samples", 1)
        case "action":
            return problems * asking["states"] * (2 if asking.get("form") == "rank" and asking["swaps"] else 1)
        case _:
            return problems * drawn["samples"]


def teach(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the questions about a node's rollouts, as if the dearest rule of the routing were for all of them."""
    count = calls(params, sizes)
    own = params.get("rules", range(len(params["routing"])))
    asking = [params["routing"][i]["teachers"] for i in own if params["routing"][i]["teachers"]]
    rules = [_rule(params, sizes, count, teachers) for teachers in asking]
    by_teacher: dict[str, tuple[float, float]] = {}
    for asked, _ in rules:
        for name, (sent, usd) in asked.items():
            most = by_teacher.get(name, (0.0, 0.0))
            by_teacher[name] = (max(most[0], sent), max(most[1], usd))
    sent = max((sum(s for s, _ in asked.values()) for asked, _ in rules), default=0.0)
    usd = max((sum(d for _, d in asked.values()) for asked, _ in rules), default=0.0)
    return Estimate(
        tokens=0, teacher_calls=round(sent), teacher_usd=usd, by_teacher=by_teacher, memory_gb=PROCESS_GB / 2,
        disk_mb=count * 4e-3, seconds=0.3 + max((s for _, s in rules), default=0.0),
        memory_parts={"process": PROCESS_GB / 2},
    )  # fmt: skip


def _rule(
    params: Mapping[str, Any], sizes: Sizes, count: float, weights: Mapping[str, float]
) -> tuple[dict[str, tuple[float, float]], float]:
    """Return calls and dollars of each teacher that is paid for, and the seconds, if a rule were for all questions."""
    trajectory = max(sizes.trajectory(params["data"])[0], 150.0)
    shown = params["drawn"]["samples"] if params["signal"] == "rank" else 1
    tokens_in, tokens_out = _INSTRUCTION + _TOOLS + shown * trajectory, _ANSWER[params["signal"]]
    asked: dict[str, tuple[float, float]] = {}
    seconds = 0.0
    for name, share in _shares(params["teachers"], weights).items():
        if params["teachers"][name]["kind"] != "openai":
            seconds += count * share / 800
            continue
        access = params["access"]["teachers"].get(name, {})
        price = access.get("price") or {"input": 0.0, "output": 0.0}
        usd = count * share * (tokens_in * price["input"] + tokens_out * price["output"]) / 1e6
        asked[name] = (count * share, usd)
        limits = access["limits"]
        rate = limits["in_flight"] / _SECONDS
        if limits["requests_per_minute"]:
            rate = min(rate, limits["requests_per_minute"] / 60)
        seconds += count * share / rate
    return asked, seconds


def _shares(teachers: Mapping[str, Any], weights: Mapping[str, float]) -> dict[str, float]:
    """Return how many of the questions each teacher gets; every member of an ensemble gets all of its questions."""
    total = sum(weights.values()) or 1.0
    found: dict[str, float] = {}
    for name, weight in weights.items():
        teacher = teachers[name]
        for asked in teacher["members"] if teacher["kind"] == "ensemble" else [name]:
            found[asked] = found.get(asked, 0.0) + weight / total
    return found
