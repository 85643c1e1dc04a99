"""From a teacher's scores and critiques to advantages: what it says is added to what the verifiers say, and bounded.

score:    R = R_verifiers + weight x score, compared within the problem.
critique: A of turn k = A_trajectory + turn_coef x (q_k - mean q), q in {1, 0, -1} (formula sheet 8.4). The terms of a
          trajectory's turns sum to zero: the outcome stays in charge, the teacher says where. The call that would have been
          right at the first error of a failure has A = correction_coef, with r = pi / start.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from specs.grpo import GRPO
from specs.ladder import Critique, Fit, Practice, Scoring
from specs.records import NOT_TRAINED, TeacherSignal, Trajectory
from tasks.learning.rows import TrainingRow, rows_from
from tasks.loops.groups import group_stats
from tasks.loops.lists import scored
from tasks.loops.state_calls import State, call_rows
from tasks.loops.teacher_words import behind, said
from tasks.loops.updates import without_missing
from tasks.teachers.reading import LABELS

MAX_GAP = 0.1
"""Mean |trainer - sampler| logprob of the rollouts from which a round stops."""


@dataclass(slots=True)
class Feedback:
    """Rows with their advantages, and what was left out."""

    rows: list[TrainingRow] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    used: set[str] = field(default_factory=set[str])
    """Signals about trajectories of which rows train, by id."""

    def add(self, other: "Feedback") -> None:
        """Take in what another signal says of other problems."""
        self.rows += other.rows
        self.left_out.update(other.left_out)
        self.used |= other.used
        groups = self.figures.get("teaching_groups", 0.0) + other.figures["teaching_groups"]
        self.figures |= other.figures | {"teaching_groups": groups}

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        return [f"{n} left out: {reason}" for reason, n in sorted((+self.left_out).items())]


def grpo_of(practice: Practice, fit: Fit, samples: int) -> GRPO:
    """Return the policy gradient that a round's rollouts train by."""
    return GRPO(
        type="grpo", group_size=max(2, samples), problems_per_step=fit.per_step, scale_rewards=practice.scale_rewards,
        clip_low=practice.clip_low, clip_high=practice.clip_high, kl_coef=practice.kl_coef, optimizer=fit.optimizer,
    )  # fmt: skip


def from_scores(
    signals: Sequence[TeacherSignal], trajectories: Sequence[Trajectory], spec: Scoring, grpo: GRPO, max_length: int
) -> Feedback:
    """Return rows whose advantages come from reward and score together."""
    made = Feedback()
    scores = scored(signals, trajectories, spec.rubric, made.left_out)
    kept = [t for t in trajectories if t.reward is not None and t.id in scores]
    made.left_out["no_score"] = len(trajectories) - len(kept)
    blended = [replace(t, reward=(t.reward or 0.0) + spec.weight * scores[t.id]) for t in kept]
    stats = group_stats(blended, grpo)
    made.rows, report = rows_from(
        blended, max_length=max_length, truncated="score", behaviour=True, advantages=stats.advantages
    )
    made.left_out.update(report.dropped)
    _leave_out_missing(made, grpo)
    made.used = behind(made.rows, signals)
    given = [scores[t.id] for t in kept]
    by_outcome = {o: [scores[t.id] for t in kept if t.success is o] for o in (True, False)}
    made.figures = {"score_mean": fmean(given) if given else 0.0, "teaching_groups": float(stats.teaching)}
    made.figures |= {
        f"score_of_{name}": fmean(by_outcome[o])
        for name, o in (("successes", True), ("failures", False))
        if by_outcome[o]
    }
    return made


def from_critiques(
    signals: Sequence[TeacherSignal], trajectories: Sequence[Trajectory], spec: Critique, grpo: GRPO, max_length: int
) -> Feedback:
    """Return rows whose turns have advantages of their own."""
    made = Feedback()
    labels = _labels(signals, made.left_out)
    stats = group_stats(trajectories, grpo)
    judged = [t for t in trajectories if t.reward is not None and t.success is not None]
    made.left_out["no_verdict"] = len(trajectories) - len(judged)
    totals, turns = dict[str, float](), dict[str, list[float]]()
    for trajectory in judged:
        whole = stats.advantages.get(trajectory.id, 0.0)
        worth = labels.get(trajectory.id, [])
        mean = fmean(worth) if worth else 0.0
        own = [whole + spec.turn_coef * (q - mean) for q in worth] or [whole] * len(trajectory.turns)
        if any(own):
            totals[trajectory.id], turns[trajectory.id] = whole, own
        else:
            made.left_out["nothing_to_compare"] += 1
    made.rows, report = rows_from(
        [t for t in judged if t.id in totals], max_length=max_length, truncated="score", behaviour=True,
        advantages=totals, turn_advantages=turns,
    )  # fmt: skip
    made.left_out.update(report.dropped)
    _leave_out_missing(made, grpo)
    made.used = behind(made.rows, signals)
    flat = [q for worth in labels.values() for q in worth]
    made.figures = {
        "critiques": float(len(labels)),
        "label_mean": fmean(flat) if flat else 0.0,
        "teaching_groups": float(stats.teaching),
    }
    return made


def add_right_calls(
    made: Feedback,
    signals: Sequence[TeacherSignal],
    state_of: Callable[[str, int], State],
    coef: float,
    max_length: int,
) -> None:
    """Add a row, of advantage `coef`, for each call that a critique names as right at the first error of a failure.

    The policy did not make it: what stands for the sampler's logprobs is asked of the start.
    """
    found: list[TrainingRow] = []
    for signal in said(signals, Counter()):  # those that say nothing are counted with the labels
        error = next((t for t in (signal.content or {})["turns"] if t["label"] == "first_error"), None)
        if error is None:
            continue
        state = state_of(signal.trajectories[0], error["turn"])
        why = _no_right_call(state, error["correction"])
        if why:
            made.left_out[why] += 1
        else:
            found += [row for row, _ in call_rows(state, [(error["correction"], coef)], made.left_out, max_length)]
    for row in found:
        row.advantages, row.stale = [coef] * len(row.ids), True
    made.rows += found
    made.used |= behind(found, signals)
    made.figures["right_calls"] = float(len(found))


def _no_right_call(state: State, right: Mapping[str, Any] | None) -> str:
    """Return why nothing is learnt of the call that a teacher names; empty where something is."""
    trajectory, call = state.trajectory, state.trajectory.turns[state.turn].call
    if right is None:
        return "no_correction"
    if trajectory.success is not False:
        return "error_in_a_success" if trajectory.success else "no_verdict"
    if call is not None and (call.name, call.arguments) == (right["name"], right["arguments"]):
        return "correction_is_the_call"
    if NOT_TRAINED in trajectory.tags:
        return "token_drift"
    return "several_contexts" if len(trajectory.segments) > 1 else ""


def _leave_out_missing(made: Feedback, grpo: GRPO) -> None:
    """Take out tokens without a sampler logprob: they have no ratio. TrainingError where they are too many."""
    made.rows, missing = without_missing(made.rows, grpo.max_missing_logprobs, 0)
    made.left_out["token_without_a_sampler_logprob"] += missing


def _labels(signals: Iterable[TeacherSignal], left_out: Counter[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for signal in said(signals, left_out):
        assert signal.content is not None, "it says something"
        found[signal.trajectories[0]] = [LABELS[t["label"]] for t in signal.content["turns"]]
    return found
