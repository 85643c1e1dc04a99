"""What the gates of a plan can decide with the problems they have: known before anything runs. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flows.looks import Known
from flows.nodes import Json, Plan

DISCORDANT = 0.1
"""Share of pairs assumed to differ between candidate and baseline."""
POWER = 0.8
_SHARES = ("success", "success_greedy", "tool_success", "invalid_call_rate", "truncated_rate")
_BOUNDS = ("at_least", "at_most", "no_worse_by", "better_by")


@dataclass(frozen=True, slots=True)
class GatePower:
    """What one requirement can decide. `smallest` is a difference in the metric, `needed` a count of problems."""

    gate: str
    metric: str
    set: str
    bound: str
    value: float
    problems: int
    alpha: float
    """Level of this look, shared by the gate's requirements (the worst case of Holm's correction) and, on the set by which
    the best of several stages is chosen, by these."""
    decidable: bool
    smallest: float | None
    needed: int | None
    text: str

    def to_dict(self) -> Json:
        """Return JSON-ready data."""
        return asdict(self)


def gate_powers(plan: Plan, known: Mapping[str, Known] | None = None) -> list[GatePower]:
    """Return what every requirement of every gate can decide; `known`: gate node -> looks, none where left out."""
    found: list[GatePower] = []
    for node in plan.nodes:
        if node.kind == "gate":
            gate = node.params["gate"]
            later = sum(name.startswith("earlier.") for name in node.inputs)
            look, level, used = _look(gate, (known or {}).get(node.id) or Known(later=later))
            params = {**node.params, "look": look, "level": level, "used": used}
            params["moment"] = "evidence" in node.inputs
            found += [_power(params, r, plan.rows, len(gate["require"])) for r in gate["require"]]
    return found


def _look(gate: Json, known: Known) -> tuple[int, float, float]:
    """Return which look a gate's is, its level, and the alpha that others spend, those of this run before it too."""
    from tasks.statistics.looks import level_of, look_at

    look, _, used = look_at(known.candidate, known.asked)
    if known.candidate not in {a.candidate for a in known.asked}:
        for _ in range(known.later):
            used += level_of(gate["alpha"], gate["looks"], look, used)
            look += 1
    return look, level_of(gate["alpha"], gate["looks"], look, used), used


def _used_up(params: Mapping[str, Any]) -> str:
    from tasks.statistics.looks import level_of

    gate, look = params["gate"], params["look"]
    if level_of(gate["alpha"], look, look, params["used"]) > 0.0:
        times = f"asked {look - 1} times of {gate['looks']} declared looks"
        return f"used up: {times}; draw new problems or declare more looks"
    return f"used up: {look - 1} looks have spent alpha {gate['alpha']:g}; only new problems help"


def _power(params: Mapping[str, Any], requirement: Json, rows: Mapping[str, int], count: int) -> GatePower:
    gate = params["gate"]
    bound = next(b for b in _BOUNDS if requirement[b] is not None)
    value, problems = requirement[bound], rows.get(requirement["set"], 0)
    choices = len(params["candidates"]) if requirement["set"] == gate["require"][0]["set"] else 1
    alpha = params["level"] / (count * choices)
    if alpha <= 0.0:
        text, decidable, smallest, needed = _used_up(params), False, None, None
    elif bound in ("no_worse_by", "better_by"):
        decidable, smallest, needed, text = _paired(bound, value, problems, alpha)
        if params["moment"]:
            text = f"against the champion as the round begins, where there is one: {text}"
        elif params["baseline"] is None:
            text = f"not asked in this run, there is no {gate['baseline']['alias']} yet; once there is: {text}"
    elif requirement["metric"] in _SHARES:
        decidable, smallest, needed, text = _absolute(bound, value, problems, alpha)
    elif requirement["metric"] == "regressed_cases":
        decidable, smallest, needed, text = True, None, int(value), _by_count(value, problems)
    else:
        decidable, smallest, needed = problems > 1, None, None
        text = f"{requirement['metric']} is no share of problems; its spread is known only after a run"
    return GatePower(
        gate=params["name"], metric=requirement["metric"], set=requirement["set"], bound=bound, value=value,
        problems=problems, alpha=alpha, decidable=decidable, smallest=smallest, needed=needed, text=text,
    )  # fmt: skip


def _by_count(value: float, problems: int) -> str:
    if not problems:
        return "not applicable while the pool holds no case"
    return f"decided by count, at most {value:g} of {problems}"


_Answer = tuple[bool, float | None, int | None, str]


def _absolute(bound: str, value: float, problems: int, alpha: float) -> _Answer:
    from tasks.statistics.power import problems_needed, successes_needed

    level = value if bound == "at_least" else 1.0 - value
    needed = successes_needed(problems, level, alpha)
    if needed is None:
        enough = problems_needed(level, alpha)
        remedy = "state a bound below 1" if enough is None else f"{enough} problems are needed"
        return False, None, None, f"cannot pass: {problems} problems are too few even without one mistake; {remedy}"
    share = needed / problems
    if bound == "at_least":
        return True, share - value, needed, f"passes from {needed} of {problems} ({share:.3f})"
    most = problems - needed
    return True, value - most / problems, most, f"passes up to {most} of {problems} ({most / problems:.3f})"


def _paired(bound: str, value: float, problems: int, alpha: float) -> _Answer:
    from tasks.statistics.power import concordant_needed, detectable_difference, sample_size

    smallest = detectable_difference(problems, DISCORDANT, alpha, POWER)
    seen = "no difference can be seen" if smallest is None else f"the smallest change it can see is {smallest:.3f}"
    seen += f" ({POWER:.0%} power where {DISCORDANT:.0%} of {problems} pairs differ)"
    if bound == "better_by":
        return smallest is not None, smallest, None, f"{seen} beyond {value:g}"
    least = concordant_needed(value, alpha)
    if problems < least:
        return (
            False,
            smallest,
            least,
            f"cannot pass: even without one difference {least} pairs are needed, {problems} given",
        )
    if smallest is None or smallest > value:
        wanted = sample_size(value, DISCORDANT, alpha, POWER)
        return True, smallest, least, f"weak: {seen}; a tie shows {value:g} reliably from {wanted} pairs"
    return True, smallest, least, f"{seen}; without one difference {least} pairs suffice"
