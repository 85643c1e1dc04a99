"""A policy's conversation told again in a teacher's marks and tokens, and how the tokens of the two belong together.

Every message keeps its bytes. What the policy wrote is aligned: by bytes where the teacher's tokens have the same ones,
else by the next strategy that is allowed and fits. The policy's own way of cutting its text plays no part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specs.alignment import Alignment, Strategy
from specs.records import Source, Trajectory
from tasks.protocols import Span
from tasks.tokens.alignment import Bools, Chunks, Coverage, Doubts, Floats, align, joined, judge, ranges
from tasks.tokens.bytes import AnyTokenizer, Encoded
from tasks.tokens.covers import ByteOrder
from tasks.tokens.frames import Frame, Part, parts
from tasks.tokens.mapping import mapped_ends


@dataclass(frozen=True, slots=True)
class Written:
    """A text in the teacher's tokens, aligned with the policy's."""

    strategy: Strategy | None
    ids: list[int]
    chunks: Chunks
    unknown: Bools
    """By teacher token."""


@dataclass(slots=True)
class Retold:
    """A span in the teacher's ids. Chunks index the span's tokens and these ids."""

    ids: list[int]
    chunks: Chunks
    trains: Bools
    special: Bools
    unknown: Bools
    cut: Bools
    strategies: list[Strategy] = field(default_factory=list[Strategy])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens asked about in pieces that no strategy fits, by reason."""

    def judge(self, policy_S: Floats, teacher_T: Floats, settings: Alignment) -> tuple[Bools, Coverage]:
        """Return which chunks count, and the coverage of the span."""
        doubts = Doubts(self.trains, self.special, self.unknown, self.cut)
        good, coverage = judge(
            self.chunks,
            policy_S,
            teacher_T,
            doubts,
            max_tokens=settings.max_chunk_tokens,
            max_gap=settings.max_gap,
        )
        coverage.dropped["no_teacher_token"] -= sum(self.refused.values())
        coverage.dropped.update(self.refused)
        coverage.dropped = +coverage.dropped
        coverage.strategies.update(self.strategies)
        return good, coverage


@dataclass(slots=True)
class _Story:
    """What has been told so far."""

    ids: list[int]
    chunks: list[Chunks] = field(default_factory=list[Chunks])
    cut: list[bool] = field(default_factory=list[bool])
    unknown: list[bool] = field(default_factory=list[bool])
    bytes: int = 0

    def say(self, ids: Sequence[int], unknown: Sequence[bool] | None = None) -> None:
        self.ids += ids
        self.unknown += unknown if unknown is not None else [False] * len(ids)


class Reteller:
    """Tells conversations of one policy to one teacher. Texts that come again are encoded once."""

    def __init__(
        self,
        policy: tuple[AnyTokenizer, Frame],
        teacher: tuple[AnyTokenizer, Frame],
        settings: Alignment,
        system: Callable[[Trajectory], str] | None = None,
    ) -> None:
        self._system = system
        """What the teacher's template says first, where it has a system turn and the policy's has none."""
        self._policy, self._policy_frame = policy
        self._teacher, self._teacher_frame = teacher
        self._settings = settings
        self._order: ByteOrder | None = None
        self._known: dict[str, Encoded] = {}

    @property
    def order(self) -> ByteOrder:
        """Return the teacher's vocabulary in the order of its bytes."""
        if self._order is None:
            self._order = ByteOrder(self._teacher.table)
        return self._order

    def tell(self, span: Span) -> Retold:
        """Return the span in the teacher's ids."""
        sources = span.trajectory.sources[span.start : span.start + len(span.ids)]
        story, frame = _Story(list(self._teacher_frame.begin)), self._teacher_frame
        story.unknown = [False] * len(story.ids)
        found = Retold([], joined([]), np.array(span.mask, dtype=bool), _specials(span.ids, self._policy), *_EMPTY)
        told = [p for p in parts(span.ids, sources, self._policy_frame, self._policy) if self._is_told(p, sources)]
        if self._system is not None and frame.name != "builtin/compact@1" and all(p.role != "system" for p in told[:1]):
            text = self._encode(self._system(span.trajectory))
            story.say(
                [*frame.opening["system"], *text.ids, *([] if frame.stop is None else [frame.stop]), *frame.after]
            )
        for number, part in enumerate(told):
            story.say(frame.opening[part.role])
            if any(span.mask[part.start : part.end + part.stopped]):
                self._own(span, part, story, found)
            else:
                story.say(
                    self._encode(self._policy.bytes_of(span.ids[part.start : part.end]).decode(errors="replace")).ids
                )
                if part.stopped and frame.stop is not None:
                    story.say([frame.stop])
            if number + 1 < len(told):
                story.say(frame.after)
        found.ids, found.chunks = story.ids, joined(story.chunks)
        found.unknown, found.cut = np.array(story.unknown, dtype=bool), np.array(story.cut, dtype=bool)
        return found

    def _is_told(self, part: Part, sources: Sequence[int]) -> bool:
        """Return whether the teacher's template has the message too: the compact one has no system text of its own."""
        own = part.role == "system" and sources[part.start - 1] == Source.TEMPLATE
        return not (own and self._teacher_frame.name == "builtin/compact@1")

    def _own(self, span: Span, part: Part, story: _Story, found: Retold) -> None:
        """Tell a message that the policy wrote, and align it."""
        ids = span.ids[part.start : part.end]
        written = self._write(ids)
        if written.strategy is None:
            reason = "normalised" if _is_text(self._policy.bytes_of(ids)) else "not_text"
            lost = sum(span.mask[part.start : part.end])
            found.refused[reason] = found.refused.get(reason, 0) + lost
        else:
            found.strategies.append(written.strategy)
            story.chunks.append(written.chunks.moved(story.bytes, part.start, len(story.ids)))
            story.cut += [False] * (len(written.chunks) - 1) + [not part.ended] * min(1, len(written.chunks))
        story.say(written.ids, written.unknown.tolist())
        story.bytes += int(self._policy.ends_of(ids)[-1:].sum())
        stop = self._teacher_frame.stop
        found.special[part.end : part.end + part.stopped] = False
        if part.stopped and stop is not None:
            own, theirs, at = (np.array([[i, i + 1]]) for i in (part.end, len(story.ids), 0))
            story.chunks.append(Chunks(at * 0 + story.bytes, own, theirs))
            story.cut.append(False)
            story.say([stop])

    def _write(self, ids: list[int]) -> Written:
        """Return what the policy wrote in the teacher's tokens, by the first strategy that fits."""
        data, ends = self._policy.bytes_of(ids), self._policy.ends_of(ids)
        text, whole = _text_of(data)
        encoded = self._encode(text)
        fits: dict[Strategy, Callable[[], Written | None]] = {
            "byte_span": lambda: _by_ends("byte_span", encoded, ends) if encoded.exact else None,
            "text_span": lambda: _by_ends("text_span", encoded, ends) if _placed(encoded, text) else None,
            "sequence_mapping": lambda: self._mapped(ids, encoded, text.encode()),
            "vocabulary_projection": lambda: self._projected(ids),
        }
        for strategy in self._settings.strategies:
            if strategy != "vocabulary_projection" and not whole:
                continue
            if (written := fits[strategy]()) is not None:
                return written
        return Written(None, encoded.ids, joined([]), encoded.unknown)

    def _encode(self, text: str) -> Encoded:
        if text not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[text] = self._teacher.encode(text)
        return self._known[text]

    def _mapped(self, ids: list[int], encoded: Encoded, text: bytes) -> Written | None:
        ends, own = self._teacher.ends_of(encoded.ids), self._policy.ends_of(ids)
        placed = mapped_ends(text, own, self._teacher.bytes_of(encoded.ids), ends)
        if placed is None:
            return None
        return Written("sequence_mapping", encoded.ids, align(own, placed), encoded.unknown)

    def _projected(self, ids: list[int]) -> Written | None:
        """Write each token of the policy on its own, with the longest tokens of the teacher that fit."""
        told: list[int] = []
        stops: list[int] = []
        for token in ids:
            rest = self._policy.table[token]
            while rest:
                match = self.order.longest_match(rest)
                if match is None:
                    return None
                told.append(match)
                rest = rest[len(self._teacher.table[match]) :]
            stops.append(len(told))
        own, ends = np.arange(1, len(ids) + 1), self._policy.ends_of(ids)
        chunks = Chunks(ranges(ends), ranges(own), ranges(np.array(stops, dtype=np.int64)))
        return Written("vocabulary_projection", told, chunks, np.zeros(len(told), dtype=bool))


_KNOWN = 50_000
_NONE: Bools = np.zeros(0, dtype=bool)
_EMPTY = (_NONE, _NONE)


def _by_ends(strategy: Strategy, encoded: Encoded, ends: np.ndarray) -> Written:
    return Written(strategy, encoded.ids, align(ends, encoded.ends), encoded.unknown)


def _placed(encoded: Encoded, text: str) -> bool:
    """Return whether the spans of a tokenizer that changed a text place its tokens: they reach what was written last."""
    reached = int(encoded.ends[-1:].sum())
    return not encoded.exact and reached >= len(text.rstrip().encode())


def _specials(ids: Sequence[int], tokenizer: AnyTokenizer) -> Bools:
    """Return which tokens are special: where the policy wrote one inside a text, the teacher has nothing like it."""
    return np.array([i in tokenizer.specials for i in ids], dtype=bool)


def _is_text(data: bytes) -> bool:
    return _text_of(data)[1]


def _text_of(data: bytes) -> tuple[str, bool]:
    """Return the text of the bytes, without a character that is cut off at their end, and whether that is one."""
    try:
        return data.decode(), True
    except UnicodeDecodeError as e:
        if e.end == len(data) and e.reason == "unexpected end of data":
            return data[: e.start].decode(), True
        return data.decode(errors="replace"), False
