"""A teacher with another tokenizer: the conversation is told in its marks and tokens, scored in one pass, and brought back.

The teacher reads every trajectory once, however many tokens of the policy it is asked about; its sums over chunks of text
that both share are what the policy's tokens get. With `score: covers` tokens inside a chunk get the exact probability of
their bytes instead, for which the teacher also reads other ways of writing the chunk.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specs.alignment import Alignment
from specs.errors import ProgramError
from specs.records import Trajectory
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.rows import sampled_at
from tasks.protocols import EarlyTeacher, Feed, Span, Telling, TokenScores
from tasks.tokens.alignment import Coverage, Floats, sums
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.covers import History, SpanScorer
from tasks.tokens.frames import Frame
from tasks.tokens.retelling import Reteller, Retold


class OtherTokenizerTeacher:
    """A `TokenTeacher` over another one whose token ids are not the policy's."""

    def __init__(
        self,
        model: EarlyTeacher,
        policy: tuple[AnyTokenizer, Frame],
        teacher: tuple[AnyTokenizer, Frame],
        settings: Alignment,
        system: Callable[[Trajectory], str] | None = None,
    ) -> None:
        """ProgramError where exact covers are asked for and the model's distributions are not in this process."""
        if settings.score == "covers" and not isinstance(model, OpenTeacher):
            raise ProgramError(
                f"teachers.{model.name}: align.score: covers reads whole distributions, which a server does not give; "
                "write canonical"
            )
        self._model = model
        self._settings = settings
        self._tokenizers = policy[0], teacher[0]
        self._reteller = Reteller(policy, teacher, settings, system)
        self._coverage = Coverage()
        self._passes = 0
        self._left_out = 0.0

    @property
    def name(self) -> str:
        """Return the name in the program's roster."""
        return self._model.name

    def take_figures(self) -> dict[str, float]:
        """Return what was covered since this was last called, and what the model behind it tells."""
        figures = self._coverage.figures()
        if isinstance(self._model, Telling):
            figures |= self._model.take_figures()
        if self._settings.score == "covers":
            asked = max(1, self._coverage.merged)
            figures |= {"cover_passes": float(self._passes), "cover_mass_left_out": self._left_out / asked}
        self._coverage, self._passes, self._left_out = Coverage(), 0, 0.0
        return figures

    @property
    def elsewhere(self) -> bool:
        """Return whether another process does the work."""
        return self._model.elsewhere

    def ahead(self, feed: Feed, size: int) -> None:
        """Have the model score what comes, in its own tokens."""
        self._model.ahead(_Retold(feed, self._reteller), size)

    def score(self, spans: Sequence[Span]) -> list[TokenScores]:
        """Return per span the teacher's logprob of each chunk, at its last token; NaN where there is none."""
        told = [self._reteller.tell(span) for span in spans]
        asked = [_asked(span, retold) for span, retold in zip(spans, told, strict=True)]
        found = self._model.score(asked)
        return [
            self._brought_back(span, retold, question, np.array(scores.logprobs))
            for span, retold, question, scores in zip(spans, told, asked, found, strict=True)
        ]

    def _brought_back(self, span: Span, retold: Retold, question: Span, teacher_T: Floats) -> TokenScores:
        policy_S = np.array(span.trajectory.logprobs[span.start : span.start + len(span.ids)])
        policy_S = np.where(np.isfinite(policy_S), policy_S, 0.0)
        good_C, coverage = retold.judge(policy_S, teacher_T, self._settings)
        self._coverage.add(coverage)
        logprobs, numbers = [math.nan] * len(span.ids), [-1] * len(span.ids)
        sums_C = sums(np.where(np.isfinite(teacher_T), teacher_T, 0.0), retold.chunks.teacher_C2)
        for c in np.flatnonzero(good_C).tolist():
            first, last = retold.chunks.policy_C2[c].tolist()
            logprobs[first:last] = [0.0] * (last - first - 1) + [float(sums_C[c])]
            numbers[first:last] = [first] * (last - first)
        if self._settings.score == "covers":
            self._cover(span, retold, question, np.flatnonzero(good_C).tolist(), (logprobs, numbers))
        return TokenScores(logprobs, numbers)

    def _cover(
        self, span: Span, retold: Retold, question: Span, good: list[int], columns: tuple[list[float], list[int]]
    ) -> None:
        """Give every token of the merged chunks the exact probability of its bytes, as far as passes reach."""
        assert isinstance(self._model, OpenTeacher), "covers need a model of this process"
        chunks, (policy, _) = retold.chunks, self._tokenizers
        merged = [c for c in good if chunks.policy_sizes_C[c] > 1 or chunks.teacher_sizes_C[c] > 1]
        if not merged:
            return
        states = _States(self._model, question, self._settings.max_cover_passes)
        logprobs, numbers = columns
        for c in merged:
            (first, last), (start, end) = chunks.policy_C2[c].tolist(), chunks.teacher_C2[c].tolist()
            left, prefix = states.left, self._prefix(span.ids[first:last], retold.ids[start:end])
            if prefix is None:
                continue
            scorer = SpanScorer(self._reteller.order, partial(states.after, start, end), self._settings.min_cover_mass)
            pieces = [policy.table[i] for i in span.ids[first:last]]
            shares = scorer.shares([prefix + pieces[0], *pieces[1:]])
            self._left_out += scorer.left_out
            if states.refused or not all(map(math.isfinite, shares)):
                states.left, states.refused = left, False
                continue
            logprobs[first:last] = shares
            numbers[first:last] = range(first, last)
        self._passes += self._settings.max_cover_passes - states.left

    def _prefix(self, own: Sequence[int], told: Sequence[int]) -> bytes | None:
        """Return what the teacher writes before the policy's bytes of a chunk (a space before every text), if only that."""
        policy, teacher = self._tokenizers
        theirs, mine = teacher.bytes_of(told), policy.bytes_of(own)
        return theirs.removesuffix(mine) if mine and theirs.endswith(mine) else None


def _asked(span: Span, retold: Retold) -> Span:
    """Return the teacher's question: its own tokens, those in chunks to be scored."""
    mask = np.zeros(len(retold.ids), dtype=bool)
    for start, end in retold.chunks.teacher_C2.tolist():
        mask[start:end] = True
    mask[:1] = False
    return Span(span.trajectory, span.start, retold.ids, mask.tolist())


class _Retold:
    """A feed whose spans are told in the teacher's tokens."""

    def __init__(self, feed: Feed, reteller: Reteller) -> None:
        self._feed, self._reteller = feed, reteller

    def take(self, seconds: float = 0.0) -> Sequence[Span] | None:
        spans = self._feed.take(seconds)
        return spans and [_asked(s, self._reteller.tell(s)) for s in spans]

    def done(self, count: int) -> None:
        self._feed.done(count)


class _States:
    """The teacher's distributions along one conversation, and beside it for a bounded number of further passes."""

    def __init__(self, model: OpenTeacher, question: Span, passes: int) -> None:
        self._model = model
        self._question = question
        self._states = model.states([question])
        self._row = np.cumsum(question.mask) - 1
        self.left = passes
        self.refused = False
        """A further pass was wanted and there was none left."""

    def after(self, start: int, end: int, history: History) -> Floats | None:
        """Return the logprobs of every token after a history that begins at `start`; the written one ends at `end`."""
        ids = self._question.ids
        at = start + len(history)
        if at < end and tuple(ids[start:at]) == history:
            return self._of(self._states[int(self._row[at])])
        if self.left == 0 or at + 1 > self._model.max_length:
            self.refused = True
            return None
        self.left -= 1
        aside = [*ids[:start], *history, 0]
        span = Span(self._question.trajectory, 0, aside, [False] * (len(aside) - 1) + [True])
        return self._of(self._model.states([span])[0])

    def _of(self, state_D: Tensor) -> Floats:
        logits = torch.nn.functional.linear(state_D.float(), self._model.head_weight.float())
        return (logits.double() / sampled_at(self._question.trajectory)).log_softmax(-1).cpu().numpy()
