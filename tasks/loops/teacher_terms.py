"""The distillation term of a policy gradient, for the rows of one step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from specs.distillation import SampledTokens, TeacherTerm
from specs.records import Trajectory
from tasks.episodes.token_signals import TokenSignal
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.learning.teacher_term import coefficient, length_factor, with_teacher
from tasks.learning.teaching import Distiller
from tasks.loops.token_lessons import Panel, ask_and_weigh, check_coverage
from tasks.loops.token_signals import signals_of
from tasks.protocols import TokenScores
from tasks.tensors import Loss

FIGURES = ("divergence", "teacher_gap", "teacher_mass", "policy_mass", "overlap", "bounded", "outside_band", "unknown")


def sentences(curve: Sequence[dict[str, float]]) -> list[str]:
    """Return what a person should know of the teachers beside a reward: how much they left unsaid."""
    given = [line["coverage"] for line in curve if "coverage" in line]
    silent = 1 - sum(given) / len(given) if given else 0.0
    if silent < 5e-4:
        return []
    return [
        f"the teachers of distill said nothing about {100 * silent:.1f} % of the tokens, on which the reward alone counts; "
        "a trajectory may be longer than they read, no rule of routing may send it to one, or texts do not line up"
    ]


@dataclass(slots=True)
class Term:
    """A teacher beside the verifiers' reward: what it says about a step's rows, and how much that counts."""

    spec: TeacherTerm
    panel: Panel
    trajectories: dict[str, Trajectory]
    step: int
    steps: int
    signals: list[TokenSignal] = field(default_factory=list[TokenSignal])
    """What the teachers said of the rows."""

    def prepare(self, rows: Sequence[TrainingRow]) -> dict[str, float]:
        """Ask the teachers about the rows; those of other steps have no part in the term.

        TrainingError where they say too little.
        """
        own = [row for row in rows if row.trajectory in self.trajectories]
        factor = partial(length_factor, self.spec)
        coverage = ask_and_weigh(self.spec, own, self.trajectories, self.panel, factor=factor)
        check_coverage(coverage, self.spec.min_coverage, self.step)
        self.signals = list(signals_of(own, self.trajectories, self.panel))
        for row in rows:
            if row.trajectory not in self.trajectories:
                row.distill, row.teacher_weights = [0.0] * len(row.ids), [0.0] * len(self.panel.teachers)
                silent = TokenScores([float("nan")] * len(row.ids))
                row.scores = [silent] * len(self.panel.teachers) if isinstance(self.spec.over, SampledTokens) else None
        return {"coverage": coverage.share, "teacher_coef": self.coef} | self.panel.figures()

    @property
    def coef(self) -> float:
        """Return the weight of the term."""
        return coefficient(self.spec, self.step, self.steps)

    def join(self, learner: Learner, loss: Loss) -> Loss:
        """Return the loss with the term; where vocabularies are compared, the learner does so until it is told otherwise."""
        if not isinstance(self.spec.over, SampledTokens):
            teachers = self.panel.over_vocabulary(self.spec)
            learner.distiller = Distiller(self.spec, teachers, self.trajectories, alone=False)
        return with_teacher(loss, self.spec, self.coef)
