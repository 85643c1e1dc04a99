"""Whether every success earns more than every failure, whatever else a trajectory does."""

from dataclasses import dataclass

from specs.agents import ExternalAgent
from specs.program import Program
from specs.reward import Reward
from specs.verifiers import ProcessVerifier, ToolTrace

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class DominanceReport:
    """Bounds of a reward over all trajectories of at most so many calls."""

    worst_success: float
    best_failure: float
    lowest_failure: float
    """Least that a failure earns which breaks no hard condition."""
    holds: bool
    text: str
    """One sentence with the numbers, and what to change where it does not hold."""


def most_turns(program: Program) -> int:
    """Return the turns of the longest episode: an agent of one's own may sample without calling, and call without."""
    calls = max(e.max_turns for e in program.environments.values())
    return calls + (program.agent.max_requests if isinstance(program.agent, ExternalAgent) else 0)


def cut_may_succeed(program: Program) -> bool:
    """Return whether a trajectory that was cut for length can be a success: whether all that decide it judge such ones."""
    deciding = [program.verifiers.get(n) for n in (*program.reward.must, *program.reward.outcome)]
    return all(isinstance(v, ToolTrace) or (isinstance(v, ProcessVerifier) and v.judges_cut) for v in deciding)


def dominance(reward: Reward, max_calls: int, *, cut_may_succeed: bool = False) -> DominanceReport:
    """Return the bounds for episodes of at most `max_calls` calls.

    Outcome weights are normalised to one and count in full or not at all; soft scores lie in [0, 1]; the penalty for
    extra calls is longest where one call would have done. A failure may pass every outcome verifier but one.
    """
    penalty = reward.per_extra_call * max(0, max_calls - 1)
    weights = list(reward.outcome.values()) or [1.0]
    nearly = 1.0 - min(weights) / sum(weights)
    soft = sum(reward.soft.values())
    process = min(reward.process_cap, reward.process_per_call * max_calls)
    lost, off = _losses(reward, max_calls)
    cut = reward.on_truncation if cut_may_succeed else 0.0
    worst_success = 1.0 + penalty - lost - off + cut
    best_failure = nearly + soft + process
    lowest_failure = penalty + reward.on_truncation - lost - off
    successes_win = worst_success > best_failure + _TOLERANCE
    floor_is_lowest = not reward.must or reward.floor < lowest_failure - _TOLERANCE
    text = (
        f"the worst success earns {worst_success:g} ({_worst(penalty, max(0, max_calls - 1), lost, off, cut)}), "
        f"the best failure {best_failure:g} (outcome {nearly:g} + soft {soft:g} + process {process:g})"
    )
    if not successes_win:
        text += (
            f": a failure may earn as much as a success; lower soft, process_cap or per_extra_call by more than "
            f"{best_failure - worst_success:g} in sum"
        )
    if not floor_is_lowest:
        text += (
            f"; the floor {reward.floor:g} is not below the lowest honest reward {lowest_failure:g}: "
            f"set reward.floor below {lowest_failure:g}"
        )
    return DominanceReport(worst_success, best_failure, lowest_failure, successes_win and floor_is_lowest, text)


def dominance_of(program: Program, reward: Reward | None = None) -> DominanceReport:
    """Return the bounds of a program's reward, or of another one in its place, for its longest episodes."""
    return dominance(reward or program.reward, most_turns(program), cut_may_succeed=cut_may_succeed(program))


def _losses(reward: Reward, max_calls: int) -> tuple[float, float]:
    """Return the most that tool errors cost, and the most that repetition does."""
    lost = min(reward.process_cap, -reward.process_per_error * max_calls)
    return lost, 0.0 if reward.repetition is None else reward.repetition.coef


def _worst(penalty: float, extra: int, lost: float, off: float, cut: float) -> str:
    """Return what the worst success earns as a sum."""
    parts = (
        (penalty, f"for {extra} extra calls"),
        (-lost, "for tool errors"),
        (-off, "for repetition"),
        (cut, "where cut"),
    )
    return ", ".join(["1", *(f"{amount:+g} {what}" for amount, what in parts if amount)])
