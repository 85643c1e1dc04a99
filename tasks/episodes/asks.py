"""What an agent may ask of the gateway, read strictly: a chat, ids to go on from, a tool call, a text to encode.

The forms are those of the OpenAI API. What cannot be honoured is refused and never dropped, with what to do instead.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specs.errors import ProgramError, TutelageError
from tasks.episodes.agents import ToolLoopAgent
from tasks.episodes.call_json import read_json
from tasks.episodes.schemas import check_tools
from tasks.protocols import ToolSchema
from tasks.tokens.template import Message, Role

MODEL = "policy"
"""The one model that there is."""
_HARMLESS = ("user", "metadata", "store", "parallel_tool_calls", "service_tier", "safety_identifier")
"""Fields of the OpenAI API that ask for nothing here."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "stream": (False,), "top_p": (1,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "logit_bias": ({},), "stop": ([],), "seed": (), "echo": (False,), "best_of": (1,), "suffix": ("",),
    "response_format": ({"type": "text"},), "tool_choice": ("auto",), "logprobs": (True, False, 0, 1), "top_logprobs": (0,),
}  # fmt: skip
"""Fields whose neutral values alone are taken; None is neutral everywhere."""
_ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
    "function": "tool",
}  # fmt: skip
_OWN = {"model", "temperature", "max_tokens", "max_completion_tokens"}


class Refused(TutelageError):  # noqa: N818 - a request that is refused is no fault of ours
    """A request that is not carried out."""

    def __init__(self, text: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(text)
        self.status, self.code = status, code

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.status, self.code))


@dataclass(frozen=True, slots=True)
class ChatAsk:
    """A conversation that is to be continued."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class IdsAsk:
    """Token ids that are to be continued."""

    ids: list[int]
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class ToolAsk:
    """A call of one of the world's tools."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    written: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EncodeAsk:
    """A text, or a conversation, whose ids are wanted."""

    text: str | None
    chat: ChatAsk | None


@dataclass(frozen=True, slots=True)
class DecodeAsk:
    """Ids whose text is wanted."""

    ids: list[int]


Ask = ChatAsk | IdsAsk | ToolAsk | EncodeAsk | DecodeAsk


def chat_ask(body: Mapping[str, Any], agent: ToolLoopAgent, temperature: float) -> ChatAsk:
    """Return the conversation of a body of /v1/chat/completions."""
    _check(body, {"messages", "tools"}, temperature)
    return ChatAsk(_messages(body.get("messages"), agent), _tools(body.get("tools"), agent), _max_tokens(body))


def ids_ask(body: Mapping[str, Any], size: int, temperature: float) -> IdsAsk:
    """Return the ids of a body of /v1/completions; `size` is that of the vocabulary."""
    _check(body, {"prompt"}, temperature)
    prompt = body.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and any(isinstance(p, str) for p in prompt)):
        raise Refused(
            "prompt: found text, expected a list of token ids: text has more than one encoding, and the policy can only "
            'learn from exactly what it was shown. Ask POST /v1/tokenize {"text": ...} for its ids and continue with '
            "the ids of each reply (choices[0].token_ids), or use /v1/chat/completions, which takes text",
            code="text_instead_of_ids",
        )
    return IdsAsk(_ids(prompt, size, "prompt"), _max_tokens(body))


def tool_ask(body: Mapping[str, Any]) -> ToolAsk:
    """Return the call of a body of /v1/tools/call; arguments may be an object or its text, as a chat gives them.

    What a policy may have written is never refused: the call has an `error` that the policy is told.
    """
    unknown = set(body) - {"name", "arguments", "tool_call_id"}
    if unknown or not isinstance(body.get("name"), str):
        raise Refused('expected {"name": ..., "arguments": {...}}' + (f", found {sorted(unknown)}" if unknown else ""))
    name, arguments = _writable(body["name"]), body.get("arguments", {})
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    data, problem = read_json(written)
    if problem is not None:
        return ToolAsk(name, {}, _writable(written), "malformed_json")
    if not isinstance(data, dict):
        return ToolAsk(name, {}, written, "not_an_object")
    return ToolAsk(name, data, written)


def _writable(text: str) -> str:
    """Return a text that can be recorded: lone surrogates as the escapes that they were."""
    return text.encode("utf-8", "backslashreplace").decode()


def encode_ask(body: Mapping[str, Any], agent: ToolLoopAgent) -> EncodeAsk:
    """Return what a body of /v1/tokenize wants to be encoded."""
    if isinstance(body.get("text"), str) and set(body) <= {"text", "model"}:
        return EncodeAsk(body["text"], None)
    if "messages" in body and set(body) <= {"messages", "tools", "model"}:
        return EncodeAsk(None, ChatAsk(_messages(body["messages"], agent), _tools(body.get("tools"), agent), None))
    raise Refused('expected {"text": ...} or {"messages": [...], "tools": [...]}')


def decode_ask(body: Mapping[str, Any], size: int) -> DecodeAsk:
    """Return the ids of a body of /v1/detokenize."""
    if not set(body) <= {"ids", "model"}:
        raise Refused('expected {"ids": [...]}')
    return DecodeAsk(_ids(body.get("ids"), size, "ids"))


def _check(body: Mapping[str, Any], own: set[str], temperature: float) -> None:
    """Refuse another model, another temperature, and fields that ask for what is not done."""
    if body.get("model") != MODEL:
        raise Refused(f"model: found {body.get('model')!r}, expected {MODEL!r} (OPENAI_MODEL)", 404, "model_not_found")
    asked = body.get("temperature")
    if asked is not None and (isinstance(asked, bool) or asked != temperature):
        raise Refused(f"temperature: found {asked!r}, but it is the program's ({temperature:g}); leave it out")
    for key, value in body.items():
        if key in own | _OWN or key in _HARMLESS or value is None:
            continue
        if key not in _NEUTRAL:
            raise Refused(f"{key}: this field is not known here; leave it out")
        if value not in _NEUTRAL[key]:
            allowed = " or ".join(map(repr, _NEUTRAL[key])) or "nothing"
            raise Refused(f"{key}: found {str(value)[:100]}, expected {allowed}; leave it out")


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    given = [body[k] for k in ("max_completion_tokens", "max_tokens") if body.get(k) is not None]
    if any(type(v) is not int or v < 1 for v in given):
        raise Refused(f"max_tokens: found {given[0]!r}, expected a whole number of at least 1")
    return min(given) if given else None


def _ids(value: Any, size: int, where: str) -> list[int]:
    if not isinstance(value, list) or not value or any(type(i) is not int or not 0 <= i < size for i in value):
        raise Refused(f"{where}: expected a list of token ids from 0 to {size - 1}, at least one")
    return value


def _messages(value: Any, agent: ToolLoopAgent) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise Refused("messages: expected a list of at least one message")
    made = tuple(_message(m, f"messages[{i}]", agent) for i, m in enumerate(value))
    if made[-1].role == "assistant":
        raise Refused("messages: the last one is the assistant's; expected a message that can be answered")
    return made


def _message(value: Any, where: str, agent: ToolLoopAgent) -> Message:
    role = _ROLES.get(str(value.get("role"))) if isinstance(value, dict) else None
    if role is None:
        raise Refused(f"{where}: expected an object with role {', '.join(_ROLES)}")
    text = _text(value.get("content"), where)
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise Refused(f"{where}.tool_calls: expected a list, in a message of the assistant")
    return Message(role, "\n".join([*([text] if text or not calls else []), *(_call(c, where, agent) for c in calls)]))


def _text(content: Any, where: str) -> str:
    """Return the text of a message, which may be in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    if len(texts) < len(parts) or not all(isinstance(t, str) for t in texts):
        raise Refused(f"{where}.content: expected text, or parts of type text")
    return "".join(map(str, texts))


def _call(call: Any, where: str, agent: ToolLoopAgent) -> str:
    """Return a call of an earlier message as the policy would have written it."""
    from specs.records import ToolCall

    function = call.get("function") if isinstance(call, dict) else None
    asked = tool_ask({k: function.get(k) for k in ("name", "arguments")}) if isinstance(function, dict) else None
    if asked is None or asked.error is not None:
        raise Refused(f"{where}.tool_calls: expected function with a name and arguments that are the text of an object")
    return agent.write(ToolCall(asked.name, asked.arguments, ""))


def _tools(value: Any, agent: ToolLoopAgent) -> tuple[ToolSchema, ...]:
    """Return the tools of a chat; Refused where a call could not be checked against one."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Refused("tools: expected a list")
    tools = tuple(_tool(t, f"tools[{i}]") for i, t in enumerate(value))
    try:
        check_tools(tools, agent.spec.call_format)
    except ProgramError as e:
        raise Refused(f"tools: {e}") from e
    return tools


def _tool(value: Any, where: str) -> ToolSchema:
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused(f'{where}: expected {{"type": "function", "function": {{"name", "description", "parameters"}}}}')
    about, parameters = function.get("description") or "", function.get("parameters") or {"type": "object"}
    if not isinstance(about, str) or not isinstance(parameters, dict):
        raise Refused(f"{where}: description is a text, parameters a JSON schema object")
    return ToolSchema(function["name"], about, parameters)


def tools_as_openai(tools: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    """Return tools in the form in which a chat takes them."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]
