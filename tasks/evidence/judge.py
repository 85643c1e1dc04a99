"""From verdicts to success and reward.

R = floor where a hard condition is broken, else outcome + soft + process + efficiency + truncation
(formula sheet 11.1, 11.2): the outcome's weights are normalised to one and each counts in full or not at all, a soft
verifier adds its weight times its score, calls that changed or informed add and calls that failed cost at most
`process_cap` in sum, each call beyond the shortest solution, repetition and a cut cost something. `specs.dominance` shows that every success beats every failure.
"""

import math
from collections.abc import Mapping

from specs.errors import ProgramError
from specs.records import Problem, Source, Trajectory, Turn, Verdict
from specs.reward import Reward
from tasks.evidence.shaping import capped, repeated, total, weighted
from tasks.protocols import VerifierRun

_ROUNDED = 1e-3
"""How far a score may be from the mean of its turns' scores as they are written down."""


def judge(
    trajectory: Trajectory, problem: Problem, verifiers: Mapping[str, VerifierRun], reward: Reward
) -> None:  # fmt: skip
    """Fill in verdicts, success, reward and its parts.

    Where a verdict of a hard condition or of the outcome is invalid there is neither success nor reward. An invalid
    soft verdict leaves its part out, and the trajectory is tagged `left_out:<verifier>`.
    """
    outcome = outcome_weights(reward, verifiers)
    verdicts = {name: _sound(v.verify(trajectory, problem)) for name, v in verifiers.items()}
    trajectory.verdicts = list(verdicts.values())
    trajectory.success, trajectory.reward, trajectory.reward_parts = None, None, {}
    for turn in trajectory.turns:
        turn.reward = 0.0
    if any(verdicts[name].invalid is not None for name in (*reward.must, *outcome)):
        return
    kept = all(verdicts[name].passed for name in reward.must)
    trajectory.success = kept and all(verdicts[name].passed for name in outcome)
    parts = _parts(trajectory, problem, verdicts, reward, outcome) if kept else {"floor": reward.floor}
    trajectory.reward_parts = parts
    trajectory.reward = total(parts, kept=kept, floor=reward.floor)
    if kept:
        for turn, own in zip(trajectory.turns, _by_turn(trajectory, verdicts, reward), strict=True):
            turn.reward = own


def _parts(
    trajectory: Trajectory,
    problem: Problem,
    verdicts: Mapping[str, Verdict],
    reward: Reward,
    outcome: Mapping[str, float],
) -> dict[str, float]:
    """Return what adds up to the reward where no hard condition is broken."""
    scores = {name: score for name in reward.soft if (score := verdicts[name].score) is not None}
    tags = [f"left_out:{name}" for name in reward.soft if name not in scores]
    trajectory.tags += [tag for tag in tags if tag not in trajectory.tags]
    parts = {
        "task": sum(w for n, w in outcome.items() if verdicts[n].passed) / sum(outcome.values()),
        "soft": weighted(scores.values(), [reward.soft[n] for n in scores]),
        "process": _process(trajectory, reward),
        "efficiency": reward.per_extra_call * max(0, len(trajectory.turns) - problem.min_calls),
        "truncation": reward.on_truncation if trajectory.status == "truncated" else 0.0,
    }
    if (again := reward.repetition) is not None:
        written = [i for i, s in zip(trajectory.ids, trajectory.sources, strict=True) if s == Source.POLICY]
        parts["repetition"] = -again.coef * repeated(written, again.ngram)
    return parts


def outcome_weights(reward: Reward, verifiers: Mapping[str, object]) -> dict[str, float]:
    """Return the weights of the verifiers that decide success: those named, else the only one that is left."""
    for part, names in (("must", reward.must), ("outcome", reward.outcome), ("soft", reward.soft)):
        for name in names:
            if name not in verifiers:
                raise ProgramError(
                    f"reward.{part}: there is no verifier {name!r}; expected one of {', '.join(verifiers)}"
                )
    if reward.outcome:
        return dict(reward.outcome)
    free = [n for n in verifiers if n not in reward.must and n not in reward.soft]
    if len(free) != 1:
        raise ProgramError(
            f"reward.outcome is empty and {len(free)} verifiers could decide success ({', '.join(free) or 'none'}); "
            "name the ones that do, for example outcome: {NAME: 1.0}"
        )
    return {free[0]: 1.0}


def _process(trajectory: Trajectory, reward: Reward) -> float:
    useful, wrong = sum(map(_useful, trajectory.turns)), sum(map(_own_error, trajectory.turns))
    return capped(reward.process_per_call * useful + reward.process_per_error * wrong, reward.process_cap)


def _by_turn(trajectory: Trajectory, verdicts: Mapping[str, Verdict], reward: Reward) -> list[float]:
    """Return what each turn earned by itself: its call, and its share of soft scores that are means over turns.

    Where the calls' cap binds, all are made smaller by the same factor.
    """
    calls = [reward.process_per_call * _useful(t) + reward.process_per_error * _own_error(t) for t in trajectory.turns]
    whole = sum(calls)
    earned = [own * capped(whole, reward.process_cap) / whole if whole else own for own in calls]
    for name, weight in reward.soft.items():
        scores = turn_scores(verdicts[name], len(trajectory.turns))
        earned = (
            [own + weight * score / len(scores) for own, score in zip(earned, scores, strict=True)]
            if scores
            else earned
        )
    return earned


def turn_scores(verdict: Verdict, turns: int) -> list[float]:
    """Return the scores of the turns that a verdict's evidence has, where its own score is their mean; else none."""
    scores = verdict.evidence.get("turn_scores")
    if verdict.score is None or not isinstance(scores, list) or len(scores) != turns or not scores:
        return []
    numbers = [float(s) for s in scores if isinstance(s, int | float)]
    return numbers if len(numbers) == turns and abs(sum(numbers) / turns - verdict.score) < _ROUNDED else []


def _useful(turn: Turn) -> bool:
    """Return whether a call changed the state or brought something new."""
    return turn.observation is not None and (turn.observation.changed or turn.observation.informed)


def _own_error(turn: Turn) -> bool:
    """Return whether a call failed through the policy; a declared fault that struck is not its own."""
    if turn.call is not None and turn.call.error is not None:
        return True
    return turn.observation is not None and turn.observation.is_error and not turn.observation.injected


def _sound(verdict: Verdict) -> Verdict:
    """Return the verdict, invalid where its score is no number in [0, 1]."""
    if verdict.invalid is None:
        score = verdict.score
        if score is None or not math.isfinite(score) or not 0.0 <= score <= 1.0 or verdict.passed is None:
            reason = f"the verifier gave score {score!r}, passed {verdict.passed!r}"
            return Verdict(verdict.verifier, verdict.version, None, None, verdict.evidence, reason)
    return verdict
