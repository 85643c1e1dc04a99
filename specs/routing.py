"""Signals, the roster's union, and routing: which teachers are asked about which problem.

The kinds of teachers are in `specs.teachers`, imported when a program has one.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator

from specs.base import Flag, Name, Positive, Share, Spec
from specs.data import readable
from specs.unions import Members

Signal = Literal["logprobs", "action", "critique", "score", "rank", "sample"]
"""What a teacher can give. `logprobs`: of the policy's own tokens. `action`: scores of candidate tool calls in a state.
`critique`: a score, and where it matters a correction, of each turn. `score`: of a whole trajectory, by dimensions.
`rank`: an order of trajectories of one problem. `sample`: a better or corrected trajectory."""
LADDER: tuple[Signal, ...] = get_args(Signal)
"""All signals, finest first."""
BLACK_BOX: tuple[Signal, ...] = LADDER[1:]
"""What can be had in words, from a teacher that shows no probabilities."""


TEACHERS = Members(
    "kind",
    {
        "openai": "specs.teachers:OpenAITeacher",
        "model": "specs.teachers:ModelTeacher",
        "served_model": "specs.served_teacher:ServedModelTeacher",
        "trained": "specs.trained_teacher:TrainedTeacher",
        "earlier_self": "specs.teachers:EarlierSelf",
        "privileged": "specs.teachers:PrivilegedTeacher",
        "scripted": "specs.teachers:ScriptedTeacher",
        "ensemble": "specs.teachers:EnsembleTeacher",
    },
)
"""Every kind of teacher. A class is imported when a program uses it."""

if TYPE_CHECKING:
    from specs.served_teacher import ServedModelTeacher
    from specs.teachers import (
        EarlierSelf,
        EnsembleTeacher,
        ModelTeacher,
        OpenAITeacher,
        PrivilegedTeacher,
        ScriptedTeacher,
    )
    from specs.trained_teacher import TrainedTeacher

    Teacher = (
        OpenAITeacher
        | ModelTeacher
        | ServedModelTeacher
        | TrainedTeacher
        | EarlierSelf
        | PrivilegedTeacher
        | ScriptedTeacher
        | EnsembleTeacher
    )
else:
    Teacher = Annotated[Any, TEACHERS]
Teachers = dict[Name, Teacher]


class HistoryWeights(Spec):
    """Weights of a rule's teachers by how often verifiers agreed with them on problems of the same type."""

    kappa: Positive = 1.0
    """Weight times `((agreed + 1) / (asked + 2)) ** kappa`."""
    least: Share = 0.05
    """Least share of a teacher, so that it goes on being tried."""


class Route(Spec):
    """A rule: problems that `when` holds for go to these teachers. The first rule that holds counts."""

    when: Annotated[str, AfterValidator(partial(readable, routing=True))] | None = None
    """Condition over `problem.*`; where the stage asks in words, over `history.*`; where calls are judged (signal `action`), over
    `state.*`. The last rule has none."""
    teachers: dict[Name, Positive] = {}
    """Teachers and their weights. In words one of them is asked about a problem, drawn by weight; probabilities of
    several are combined as the algorithm says."""
    reject: Flag = False
    """For the last rule: problems that no rule before it holds for are refused before anything is asked, all named."""
    history: HistoryWeights | None = None
    """Let agreement with verifiers in this plan's earlier answers (an earlier round, or an earlier stage) move the weights."""


Routing = list[Route]


class Taught(Spec):
    """What algorithms share that learn from teachers of the roster."""

    uses: ClassVar[tuple[Signal, ...]] = ()  # signals that it can train on
    signal: Literal["auto"] | Signal = "auto"
    """Which signal; `auto` is the finest that all its teachers give and it can use."""
    teachers: dict[Name, Positive] | None = None
    """Its teachers and their weights; `routing` says them where left out."""

    @property
    def usable(self) -> tuple[Signal, ...]:
        """Return the signals that it may take, finest first."""
        return self.uses if self.signal == "auto" else (self.signal,)

    def apart(self, signals: Sequence[Signal]) -> str | None:
        """Return None where one loss of the stage trains on all of these; else what would make it so, or nothing."""
        return None if len(signals) == 1 else ""
