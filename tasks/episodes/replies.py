"""What the policy says in an episode of an agent of the user's own: from requests to prompts, and back to replies."""

from dataclasses import dataclass
from typing import Any, Literal

from specs.records import Source, Turn
from tasks.episodes.agents import ExternalScaffold
from tasks.episodes.asks import MODEL, ChatAsk, IdsAsk, Refused
from tasks.episodes.seeds import derive
from tasks.episodes.transcript import Conversation, Transcript
from tasks.protocols import Completion, SampleRequest, SamplingSettings
from tasks.tokens.template import Message, Segment, Template
from tasks.tokens.text import compact_json


@dataclass(frozen=True, slots=True)
class Setting:
    """What all episodes of a run share."""

    agent: ExternalScaffold
    template: Template
    settings: SamplingSettings
    max_length: int
    seed: int
    group_prefix: str
    sampler: str = "local"
    """What generates."""


class Replies:
    """The policy's side of one episode."""

    def __init__(self, shared: Setting, seed: int) -> None:
        self._shared, self._seed = shared, seed
        self._asked: dict[int, Conversation] = {}
        self._requests = 0
        self.transcript = Transcript()
        self.limit: Literal["turn_limit", "truncated"] | None = None
        """Status of an episode that was told that it may not ask further."""

    def request(self, ask: ChatAsk | IdsAsk, session: int) -> SampleRequest:
        """Return what to sample for a request; `session` is for a further conversation.

        Refused where a limit is reached or there is no room.
        """
        spec, settings = self._shared.agent.spec, self._shared.settings
        if self._requests >= spec.max_requests:
            self.limit = self.limit or "turn_limit"
            raise Refused(f"no further reply: agent.max_requests is {spec.max_requests}", 403, "request_limit")
        known = self.transcript.continued(ask.messages, ask.tools) if isinstance(ask, ChatAsk) else None
        segments = self._segments(ask, known)
        length = sum(len(ids) for _, ids in segments)
        if length >= self._shared.max_length:
            self.limit = self.limit or "truncated"
            raise Refused(
                f"the prompt has {length} tokens, expected at most {self._shared.max_length - 1} (policy.init.max_length)",
                code="context_length_exceeded",
            )
        self._requests += 1
        conversation = self.transcript.place(segments, session)
        conversation.waiting = True
        if isinstance(ask, ChatAsk):
            conversation.messages, conversation.tools = ask.messages, ask.tools
        else:
            conversation.messages = ()
        self._asked[conversation.session] = conversation
        most = min(settings.max_new_tokens, ask.max_tokens or settings.max_new_tokens)
        seed = derive(self._seed, *conversation.seed_parts, conversation.replies)
        limited = SamplingSettings(settings.temperature, most, settings.stop_ids)
        return SampleRequest(conversation.session, conversation.ids, seed, limited)

    def _segments(self, ask: ChatAsk | IdsAsk, known: Conversation | None) -> list[Segment]:
        """Return a request's whole prompt: what a conversation holds, then what is new to it."""
        if isinstance(ask, IdsAsk):
            return [(Source.USER, ask.ids)]
        if known is None:
            return self._chat(ask)
        held: list[Segment] = [(Source(s), [i]) for i, s in zip(known.ids, known.sources, strict=True)]
        return held + self._shared.template.follow(ask.messages[len(known.messages) :], cut=known.cut)

    def _chat(self, ask: ChatAsk) -> list[Segment]:
        return self._shared.template.chat(ask.messages, ask.tools, self._shared.agent.instruction if ask.tools else "")

    def ids_of(self, ask: ChatAsk) -> list[int]:
        """Return the ids of a conversation as a first request would have them."""
        return [i for _, ids in self._chat(ask) for i in ids]

    def take(self, ask: ChatAsk | IdsAsk, session: int, completion: Completion) -> dict[str, Any]:
        """Record a completion and return the reply."""
        conversation = self._asked.pop(session)
        conversation.waiting = False
        stopped = completion.finish == "stop"
        text = self._shared.template.tokenizer.decode(completion.ids[:-1] if stopped else completion.ids)
        turn = self.transcript.take(conversation, completion, text)
        prompt = len(conversation.ids) - len(completion.ids)
        usage = {
            "prompt_tokens": prompt, "completion_tokens": len(completion.ids), "total_tokens": len(conversation.ids),
        }  # fmt: skip
        shown = {"id": f"reply-{self._requests}", "created": 0, "model": MODEL, "usage": usage}
        finish = "stop" if stopped else "length"
        if isinstance(ask, IdsAsk):
            logprobs = {"token_logprobs": completion.logprobs}
            choice = {
                "index": 0,
                "text": text,
                "token_ids": completion.ids,
                "logprobs": logprobs,
                "finish_reason": finish,
            }
            return {**shown, "object": "text_completion", "choices": [choice]}
        message, said = self._message(ask, text, turn, whole=stopped)
        conversation.messages = (*conversation.messages, said)
        finish = "tool_calls" if "tool_calls" in message else finish
        choice = {
            "index": 0,
            "message": message,
            "token_ids": completion.ids,
            "finish_reason": finish,
            "logprobs": None,
        }
        return {**shown, "object": "chat.completion", "choices": [choice]}

    def _message(self, ask: ChatAsk, text: str, turn: Turn, *, whole: bool) -> tuple[dict[str, Any], Message]:
        """Return the assistant's message, with a tool call where it wrote one that fits, and as it comes back."""
        call = self._shared.agent.parse(text, ask.tools) if ask.tools and whole else None
        turn.call = call
        if call is None or call.error is not None:
            return {"role": "assistant", "content": text}, Message("assistant", text)
        function = {"name": call.name, "arguments": compact_json(call.arguments)}
        calls = [{"id": f"call_{self._requests}", "type": "function", "function": function}]
        return (
            {"role": "assistant", "content": None, "tool_calls": calls},
            Message("assistant", self._shared.agent.write(call)),
        )
