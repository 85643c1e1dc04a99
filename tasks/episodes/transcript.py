"""What was sampled in an episode of an agent of the user's own: its conversations, each a context of its own.

A prompt that goes on from a conversation, id by id, extends it. One that begins as a conversation did but leaves out
or changes what was sampled is drift: it becomes a context of its own in which the older tokens are only read. Any
other prompt opens a further conversation. Only ids that the sampler drew are the policy's.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from specs.records import Source, Turn
from tasks.protocols import Completion
from tasks.tokens.template import Message, Segment


@dataclass(slots=True, eq=False)
class Conversation:
    """A context that grows: `ids` with who wrote each, and what of them the sampler drew."""

    session: int
    ids: list[int]
    sources: list[int]
    logprobs: list[float]
    first: int
    """Tokens of its first prompt."""
    seed_parts: tuple[str | int, ...]
    versions: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    messages: tuple[Message, ...] = ()
    """What it is as messages, with the policy's reply as its last one; empty where it was continued by ids."""
    tools: object = None
    replies: int = 0
    cut: bool = False
    """Its last reply lacks the stop token."""
    waiting: bool = False
    """A reply is being sampled."""


class Transcript:
    """The conversations of one episode."""

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []
        self.turns: list[tuple[Conversation | None, Turn]] = []
        """Turns in order; those without a conversation are calls that no reply led to."""
        self.drifted = 0
        self._opened: dict[str, int] = {}

    def continued(self, messages: tuple[Message, ...], tools: object) -> Conversation | None:
        """Return the longest conversation that these messages go on from."""
        found = [
            c for c in self.conversations
            if c.messages and not c.waiting and c.tools == tools and messages[: len(c.messages)] == c.messages
        ]  # fmt: skip
        return max(found, key=lambda c: len(c.messages), default=None)

    def place(self, segments: Sequence[Segment], session: int) -> Conversation:
        """Return the conversation that a prompt belongs to, grown by it."""
        ids = [i for _, some in segments for i in some]
        sources = [int(source) for source, some in segments for _ in some]
        held = [c for c in self.conversations if not c.waiting and len(c.ids) < len(ids) and ids[: len(c.ids)] == c.ids]
        if held:
            conversation = max(held, key=lambda c: len(c.ids))
            self._grow(conversation, ids[len(conversation.ids) :], sources[len(conversation.ids) :])
            return conversation
        if any(len(ids) > c.first and c.replies and ids[: c.first] == c.ids[: c.first] for c in self.conversations):
            self.drifted += 1
        digest = hashlib.sha256(repr(ids).encode()).hexdigest()
        again = self._opened.get(digest, 0)
        self._opened[digest] = again + 1
        conversation = Conversation(session, [], [], [], len(ids), ("reply", digest, again))
        self._grow(conversation, ids, sources)
        self.conversations.append(conversation)
        return conversation

    def extend(self, conversation: Conversation, segments: Sequence[Segment]) -> None:
        """Grow a conversation by what stands between two replies."""
        for source, ids in segments:
            self._grow(conversation, ids, [int(source)] * len(ids))

    @staticmethod
    def _grow(conversation: Conversation, ids: Sequence[int], sources: Sequence[int]) -> None:
        conversation.ids += ids
        conversation.sources += sources
        conversation.logprobs += [0.0] * len(ids)

    def take(self, conversation: Conversation, completion: Completion, text: str) -> Turn:
        """Add what was sampled, and return its turn; its place counts from the start of the conversation."""
        start, number = len(conversation.ids), len(completion.ids)
        conversation.ids += completion.ids
        conversation.sources += [int(Source.POLICY)] * number
        conversation.logprobs += completion.logprobs
        conversation.replies += 1
        conversation.cut = completion.finish != "stop"
        conversation.versions.append((completion.policy_version, number))
        turn = Turn(start, start + number, text, None, None, "length" if conversation.cut else "stop")
        self.turns.append((conversation, turn))
        return turn

    def joined(self) -> "Joined":
        """Return all conversations one after the other; those without a reply are left out."""
        made = Joined()
        at: dict[int, int] = {}
        for conversation in (c for c in self.conversations if c.replies):
            at[conversation.session] = len(made.ids)
            made.segments.append(len(made.ids))
            made.ids += conversation.ids
            made.sources += conversation.sources
            made.logprobs += conversation.logprobs
            for version, number in conversation.versions:
                if made.versions and made.versions[-1][0] == version:
                    made.versions[-1] = (version, made.versions[-1][1] + number)
                else:
                    made.versions.append((version, number))
        for conversation, turn in self.turns:
            start = len(made.ids) if conversation is None else at[conversation.session]
            turn.start, turn.end = turn.start + start, turn.end + start
            made.turns.append(turn)
        return made


@dataclass(slots=True)
class Joined:
    """An episode's conversations as one record."""

    ids: list[int] = field(default_factory=list[int])
    sources: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    segments: list[int] = field(default_factory=list[int])
    """Where each conversation begins in `ids`."""
    versions: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    turns: list[Turn] = field(default_factory=list[Turn])
