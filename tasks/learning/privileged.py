"""A teacher that is shown more than the policy: the same tokens, read behind a message that only the teacher sees."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from specs.records import Trajectory
from tasks.learning.open_teacher import OpenTeacher
from tasks.protocols import Span, TokenScores

Prefix = Callable[[Sequence[Trajectory]], dict[str, list[int]]]
"""By trajectory the ids of the message; those that have none are missing. It sees a whole step, for siblings."""


class ShownTeacher:
    """A `VocabularyTeacher` behind a message of its own for each trajectory."""

    def __init__(self, model: OpenTeacher, prefix: Prefix) -> None:
        self._model = model
        self._prefix = prefix
        self._known: dict[str, list[int]] = {}

    @property
    def name(self) -> str:
        """Return the name in the program's roster."""
        return self._model.name

    @property
    def head_weight(self) -> Tensor:
        """Return the (vocabulary, width) weight that turns hidden states into logits."""
        return self._model.head_weight

    def prepare(self, trajectories: Sequence[Trajectory]) -> None:
        """Write the messages of a step."""
        found, most = self._prefix(trajectories), self._model.max_length
        self._known = {t.id: found[t.id] for t in trajectories if t.id in found and len(found[t.id] + t.ids) <= most}

    def can_say(self, trajectory: Trajectory) -> bool:
        """Return whether it has anything to be shown about a trajectory, and room for both."""
        return trajectory.id in self._known

    def score(self, spans: Sequence[Span]) -> list[TokenScores]:
        """Return the logprobs of the tokens asked about."""
        found = self._model.score([self._behind(s) for s in spans])
        return [TokenScores(f.logprobs[len(f.logprobs) - len(s.ids) :]) for f, s in zip(found, spans, strict=True)]

    def states(self, spans: Sequence[Span]) -> Tensor:
        """Return the hidden states before the tokens asked about, span after span."""
        return self._model.states([self._behind(s) for s in spans])

    def _behind(self, span: Span) -> Span:
        prefix = self._known[span.trajectory.id]
        return replace(span, ids=[*prefix, *span.ids], mask=[False] * len(prefix) + span.mask)
