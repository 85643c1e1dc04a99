"""From a batch of rollouts to what the learner is taught: rows, teachers' evidence, token weights, updates."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, pstdev
from typing import cast

from specs.distillation import OPD, Distillation, FullVocabulary, SampledTokens, TopTokens
from specs.errors import DataError, TrainingError
from specs.records import Trajectory
from tasks.learning.algorithms import loss_for
from tasks.learning.grouping import Rewarded, by_group, scaled
from tasks.learning.learner import Learner, StepReport
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.privileged import ShownTeacher
from tasks.learning.rows import TrainingRow, rows_from
from tasks.learning.teaching import Coverage, Distiller, ask, covered, normalized, take_lists, weigh
from tasks.loops.groups import reward_of
from tasks.loops.updates import without_missing
from tasks.protocols import Keeping, ListingTeacher, Telling, TokenTeacher, VocabularyTeacher

STD_FLOOR = 1e-6
_SHOWN = (
    "entropy", "logprob_gap", "divergence", "teacher_gap", "teacher_mass", "policy_mass", "overlap", "bounded",
    "outside_band", "unknown",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """The teachers of a stage, and what each weighs for a trajectory."""

    teachers: Sequence[TokenTeacher]
    weights: Callable[[Trajectory], Sequence[float]]
    """In the order of the teachers; 0: it is not asked."""
    keeping: Sequence[Keeping] = ()
    """Those that keep what was said since the last checkpoint."""
    queue: int = 256
    """Most rows that wait for one of them while others are sampled."""
    revisions: Mapping[str, str] = field(default_factory=dict[str, str])
    """By teacher, who it is: what is kept of its scores names it."""

    def settle(self) -> None:
        """Tell them that another one is about to be written."""
        for teacher in self.keeping:
            teacher.settle()

    def figures(self) -> dict[str, float]:
        """Return what teachers tell of their answers since this was last called; of several, under their names."""
        told = {t.name: t.take_figures() for t in self.teachers if isinstance(t, Telling)}
        own = len(told) == 1
        return {n if own else f"{who}.{n}": v for who, found in told.items() for n, v in found.items()}

    def prepare(self, trajectories: Sequence[Trajectory]) -> None:
        """Show a step's trajectories to the teachers that need to see them together."""
        for teacher in self.teachers:
            if isinstance(teacher, ShownTeacher):
                teacher.prepare(trajectories)

    def heard(self, trajectory: Trajectory, tokens: int = 0) -> list[float]:
        """Return the weights, 0 for a teacher that has nothing to be shown about this trajectory, or no room for a row.

        `tokens`: of the row.
        """
        silent = [
            (isinstance(t, ShownTeacher) and not t.can_say(trajectory))
            or (isinstance(t, OpenTeacher | ListingTeacher) and tokens > t.max_length)
            for t in self.teachers
        ]
        return [0.0 if s else w for s, w in zip(silent, self.weights(trajectory), strict=True)]

    def over_vocabulary(self, spec: Distillation) -> list[VocabularyTeacher | ListingTeacher]:
        """Return the teachers, which all have the policy's tokenizer. DataError where one says too little for `spec`."""
        for teacher in self.teachers:
            if isinstance(teacher, ListingTeacher) and isinstance(spec.over, FullVocabulary):
                raise DataError(
                    f"teacher {teacher.name}: it stands behind a server and lists its likeliest tokens alone; write over: "
                    "{kind: top_k, support: teacher} or {kind: sampled} in the algorithm"
                )
            if not isinstance(teacher, ListingTeacher) and not hasattr(teacher, "states"):
                raise DataError(
                    f"teacher {teacher.name}: its tokenizer is another one than the policy's, so that distributions "
                    "cannot be compared; write over: {kind: sampled} in the algorithm, or name a teacher with the "
                    "policy's tokenizer"
                )
        return [cast(VocabularyTeacher, t) for t in self.teachers]


@dataclass(slots=True)
class Lesson:
    """The rows of a step with what teachers make of them."""

    rows: list[TrainingRow]
    trajectories: dict[str, Trajectory]
    coverage: Coverage
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    missing_logprobs: int = 0

    said: dict[str, float] = field(default_factory=dict[str, float])
    """What teachers tell: how another tokenizer's tokens lined up with the policy's, what a server left unscored."""

    def figures(self) -> dict[str, float]:
        """Return the share of tokens that teachers said something about."""
        return {"coverage": self.coverage.share} | self.said

    def distiller(self, spec: Distillation, panel: Panel, *, alone: bool) -> Distiller:
        """Return what compares the rows with the teachers over a vocabulary."""
        return Distiller(spec, panel.over_vocabulary(spec), self.trajectories, alone=alone)

    def gaps(self, row: TrainingRow) -> list[float]:
        """Return by token the sampler's logprob less the teachers', weighted; 0 where they say nothing.

        The tokens of a chunk share its difference alike.
        """
        own, told = row.sampler_logprobs or [0.0] * len(row.ids), covered(row)
        values = [0.0] * len(row.ids)
        for scores, weight in zip(row.scores or [], row.teacher_weights or [], strict=True):
            apart = [
                o - said if told[t] and weight > 0 and math.isfinite(said) else 0.0
                for t, (o, said) in enumerate(zip(own, scores.logprobs, strict=True))
            ]
            for t, gap in enumerate(apart if scores.chunks is None else _shared(apart, scores.chunks)):
                values[t] += weight * gap
        return values

    def normalize(self) -> None:
        """Make the weights of all tokens sum to 1."""
        whole = sum(sum(row.distill or []) for row in self.rows)
        for row in self.rows:
            row.distill = [w / whole for w in row.distill or []] if whole > 0 else row.distill


def _shared(values: Sequence[float], chunks: Sequence[int]) -> list[float]:
    """Return every chunk's sum in equal parts."""
    sums, sizes = dict.fromkeys(chunks, 0.0), Counter(chunks)
    for value, chunk in zip(values, chunks, strict=True):
        sums[chunk] += value
    return [sums[c] / sizes[c] if c >= 0 else 0.0 for c in chunks]


def lesson(
    spec: OPD,
    drawn: Sequence[Trajectory],
    beside: Sequence[Trajectory],
    panel: Panel,
    *,
    max_length: int,
    step: int,
) -> Lesson:
    """Return the rows of a step with scores and weights. TrainingError where the teachers say too little."""
    cut = "drop" if spec.truncated == "mask" else "score"
    advantages = outcome_advantages(drawn) if spec.outcome_coef else None
    rows, made = rows_from(drawn, max_length=max_length, truncated=cut, behaviour=True, advantages=advantages)
    kept, missing = without_missing(rows, spec.max_missing_logprobs, step)
    more, _ = rows_from(beside, max_length=max_length)
    found = Lesson([*kept, *more], {t.id: t for t in (*drawn, *beside)}, Coverage(0, 0), dict(made.dropped), missing)
    found.coverage = ask_and_weigh(
        spec, found.rows, found.trajectories, panel, by_trajectory=spec.aggregation == "sequence"
    )
    found.said = panel.figures()
    check_coverage(found.coverage, spec.min_coverage, step)
    return found


def ask_and_weigh(
    spec: Distillation,
    rows: Sequence[TrainingRow],
    trajectories: dict[str, Trajectory],
    panel: Panel,
    *,
    by_trajectory: bool = False,
    factor: Callable[[Trajectory], float] = lambda _: 1.0,
) -> Coverage:
    """Give rows their teachers, these teachers' scores where single tokens are compared, and the weights of tokens."""
    panel.prepare(list(trajectories.values()))
    for row in rows:
        row.teacher_weights = normalized(panel.heard(trajectories[row.trajectory], len(row.ids)))
    match spec.over:
        case SampledTokens():
            ask(rows, panel.teachers, trajectories)
        case TopTokens(size=size):
            take_lists(rows, panel.teachers, trajectories, size)
        case FullVocabulary():
            pass
    return weigh(rows, spec, trajectories, by_trajectory=by_trajectory, factor=factor)


def check_coverage(coverage: Coverage, least: float, step: int) -> None:
    """Raise TrainingError where teachers say something about a smaller share of a step's tokens than they must."""
    if coverage.tokens and coverage.share < least:
        raise TrainingError(
            f"step {step}: teachers say something about {coverage.covered} of {coverage.tokens} tokens "
            f"({coverage.share:.0%}), min_coverage is {least:g}. Trajectories may be longer than a teacher reads "
            "(its max_length), its tokenizer may not line up with the policy's, or no rule of routing sends these "
            "problems to one"
        )


def outcome_advantages(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return by trajectory its reward's distance from its group's mean, by the standard deviation; 0 without one."""
    rewarded = Rewarded([reward_of(t) for t in trajectories], [t.group for t in trajectories])
    values = by_group(rewarded, lambda rewards, _: scaled(rewards, STD_FLOOR))
    return {t.id: v or 0.0 for t, v in zip(trajectories, values, strict=True)}


def teach(learner: Learner, made: Lesson, spec: OPD, panel: Panel, step: int) -> dict[str, float]:
    """Pass over the rows `updates_per_batch` times and return the figures of the first pass."""
    over_all = not isinstance(spec.over, SampledTokens)
    reports: list[StepReport] = []
    learner.distiller = made.distiller(spec, panel, alone=True) if over_all else None
    rows = made.rows if any(any(row.distill or []) for row in made.rows) else []
    for number in range(spec.updates_per_batch):
        guard = partial(_check_fresh, most=spec.max_logprob_gap, step=step) if number == 0 else None
        reports.append(learner.step(rows, loss_for(spec), "token", guard=guard))
    learner.distiller = None
    first, last = reports[0], reports[-1]
    figures = {name: first.metrics[name] for name in _SHOWN if name in first.metrics}
    return figures | {
        "updated": float(any(r.updated for r in reports)),
        "loss": first.loss,
        "grad_norm": first.grad_norm,
        "learning_rate": last.learning_rate,
        "trained_tokens": float(first.trained_tokens),
    }


def _check_fresh(report: StepReport, *, most: float, step: int) -> None:
    gap = report.metrics.get("logprob_gap", 0.0)
    if gap > most:
        raise TrainingError(
            f"step {step}: the trainer's and the sampler's logprobs of a fresh batch differ by {gap:.4f} nats a token, "
            f"max_logprob_gap is {most:g}: weights, tokenizer, temperature or precision differ between them. Set "
            "policy.precision and policy.sampler_precision to fp32 to see which"
        )


def figures_of(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the figures of a step's rollouts, success left of reward."""
    valid = [t for t in trajectories if t.success is not None and reward_of(t) is not None]
    rewards = [t.reward or 0.0 for t in valid]
    count = max(1, len(trajectories))
    return {
        "success": fmean(bool(t.success) for t in valid) if valid else 0.0,
        "reward_mean": fmean(rewards) if rewards else 0.0,
        "reward_std": pstdev(rewards) if rewards else 0.0,
        "invalid": 1 - len(valid) / count,
        "truncated": sum(t.status == "truncated" for t in trajectories) / count,
        "policy_tokens": fmean(t.policy_tokens for t in trajectories) if trajectories else 0.0,
        "turns": fmean(len(t.turns) for t in trajectories) if trajectories else 0.0,
    }
