"""Chat templates: from problem, observation and completion to token ids, each with its source.

`builtin/compact@1` writes one special token per role and no system text; `builtin/chatml@1` writes ChatML
with the tools' signatures in the system turn. Text of users and tools is encoded on its own, so it can neither
hold a special token nor merge with the template's.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from specs.errors import ProgramError
from specs.records import Observation, Problem, Source
from tasks.protocols import ToolSchema
from tasks.tokens.text import compact_json
from tasks.tokens.tokenizer import CHATML_SPECIALS, COMPACT_SPECIALS, Tokenizer

Segment = tuple[Source, list[int]]
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation that somebody else writes; `text` of an assistant is what it said."""

    role: Role
    text: str


TemplateName = Literal["builtin/compact@1", "builtin/chatml@1"]


class Template(Protocol):
    """Places text into a conversation. Every path (training, rollout, evaluation) uses these functions alone."""

    @property
    def name(self) -> str:
        """Return the versioned name."""
        ...

    @property
    def digest(self) -> str:
        """Return a digest of the template and its tokenizer."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the ids that end a completion."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that it places ids of."""
        ...

    @property
    def pad_id(self) -> int:
        """Return the id that fills rows; masks never look at it."""
        ...

    def prompt(self, problem: Problem, tools: Sequence[ToolSchema], instruction: str = "") -> list[Segment]:
        """Return everything before the first completion. `instruction` says how a call is written."""
        ...

    def observation(self, observation: Observation, *, cut: bool) -> list[Segment]:
        """Return what stands between two completions; `cut` where the last one lacks its stop token."""
        ...

    def completion(self, text: str) -> list[int]:
        """Return a completion's ids, its stop token included."""
        ...

    def aside(self, text: str) -> list[int]:
        """Return the ids of a message that stands before a whole conversation."""
        ...

    def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema], instruction: str = "") -> list[Segment]:
        """Return a whole conversation and the opening of the next completion; nothing of it is the policy's.

        A single user message gives what `prompt` gives for a problem with its text.
        """
        ...

    def follow(self, messages: Sequence[Message], *, cut: bool) -> list[Segment]:
        """Return what stands between a completion and the next; `cut` where the last one lacks its stop token."""
        ...


def specials_of(name: str) -> tuple[str, ...]:
    """Return the special tokens that a template needs."""
    return COMPACT_SPECIALS if name == "builtin/compact@1" else CHATML_SPECIALS


def template_for(name: str, tokenizer: Tokenizer) -> Template:
    """Return the template of that name. ProgramError where the tokenizer lacks its special tokens."""
    match name:
        case "builtin/compact@1":
            return CompactTemplate(tokenizer)
        case "builtin/chatml@1":
            return ChatMLTemplate(tokenizer)
        case _:
            raise ProgramError(f"policy.template: found {name!r}, expected builtin/compact@1 or builtin/chatml@1")


def _digest(name: str, tokenizer: Tokenizer, specials: Sequence[str]) -> str:
    ids = {s: tokenizer.special(s) for s in specials}
    return hashlib.sha256(json.dumps([name, tokenizer.digest, ids]).encode()).hexdigest()


class CompactTemplate:
    """`<|user|>text<|end|><|call|>` … `<|result|>json<|end|><|call|>`; no begin token, no system text."""

    name = "builtin/compact@1"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        specials = map(tokenizer.special, COMPACT_SPECIALS)
        self.pad_id, self._system, self._user, self._call, self._result, self._end = specials
        self.stop_ids: tuple[int, ...] = (self._end,)
        self.digest = _digest(self.name, tokenizer, COMPACT_SPECIALS)

    def prompt(self, problem: Problem, tools: Sequence[ToolSchema], instruction: str = "") -> list[Segment]:
        """Return the user's text; tools and instruction are learnt, not read."""
        return [
            (Source.TEMPLATE, [self._user]),
            (Source.USER, self.tokenizer.encode(problem.text)),
            (Source.TEMPLATE, [self._end, self._call]),
        ]

    def observation(self, observation: Observation, *, cut: bool) -> list[Segment]:
        """Return the result turn and the opening of the next call."""
        return [
            (Source.TEMPLATE, [self._end, self._result] if cut else [self._result]),
            (Source.TOOL, self.tokenizer.encode(compact_json(observation.data))),
            (Source.TEMPLATE, [self._end, self._call]),
        ]

    def completion(self, text: str) -> list[int]:
        """Return the call's ids and the end token."""
        return [*self.tokenizer.encode(text), self._end]

    def aside(self, text: str) -> list[int]:
        """Return a system message."""
        return [self._system, *self.tokenizer.encode(text), self._end]

    def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema], instruction: str = "") -> list[Segment]:
        """Return the messages and the opening of the next call; tools and instruction are learnt, not read."""
        return self.follow(messages, cut=False)

    def follow(self, messages: Sequence[Message], *, cut: bool) -> list[Segment]:
        """Return further messages and the opening of the next call."""
        openings = {"system": self._system, "user": self._user, "assistant": self._call, "tool": self._result}
        found: list[Segment] = [(Source.TEMPLATE, [self._end])] if cut else []
        for message in messages:
            source = Source.TOOL if message.role == "tool" else Source.USER
            found.append((Source.TEMPLATE, [openings[message.role]]))
            found.append((source, self.tokenizer.encode(message.text)))
            found.append((Source.TEMPLATE, [self._end]))
        return [*found, (Source.TEMPLATE, [self._call])]


class ChatMLTemplate:
    """ChatML: system turn with instruction and signatures, user turn, assistant turns, results as `tool` turns."""

    name = "builtin/chatml@1"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pad_id, self._start, self._end = map(tokenizer.special, CHATML_SPECIALS)
        self.stop_ids: tuple[int, ...] = (self._end,)
        self.digest = _digest(self.name, tokenizer, CHATML_SPECIALS)
        encode = tokenizer.encode
        self._system, self._user, self._tool = (encode(f"{r}\n") for r in ("system", "user", "tool"))
        self._newline = encode("\n")
        self._answer = [self._end, *self._newline, self._start, *encode("assistant\n")]

    def prompt(self, problem: Problem, tools: Sequence[ToolSchema], instruction: str = "") -> list[Segment]:
        """Return system turn, user turn and the opening of the assistant's."""
        system = system_text(tools, instruction)
        opening = [self._end, *self._newline, self._start, *self._user]
        return [
            (Source.TEMPLATE, [self._start, *self._system, *self.tokenizer.encode(system), *opening]),
            (Source.USER, self.tokenizer.encode(problem.text)),
            (Source.TEMPLATE, self._answer),
        ]

    def observation(self, observation: Observation, *, cut: bool) -> list[Segment]:
        """Return the tool's turn and the opening of the assistant's."""
        closing = [self._end] if cut else []
        return [
            (Source.TEMPLATE, [*closing, *self._newline, self._start, *self._tool]),
            (Source.TOOL, self.tokenizer.encode(compact_json(observation.data))),
            (Source.TEMPLATE, self._answer),
        ]

    def completion(self, text: str) -> list[int]:
        """Return the call's ids and the end token."""
        return [*self.tokenizer.encode(text), self._end]

    def aside(self, text: str) -> list[int]:
        """Return a system turn before the one of the tools."""
        return [self._start, *self._system, *self.tokenizer.encode(text), self._end, *self._newline]

    def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema], instruction: str = "") -> list[Segment]:
        """Return system turn (theirs, then instruction and signatures), messages, and the opening of the assistant's."""
        first = [messages[0].text] if messages and messages[0].role == "system" else []
        lines = [*first, *([instruction] if instruction else []), *(signature(t) for t in tools)]
        system = [*self._system, *self.tokenizer.encode("\n".join(lines))]
        source = Source.USER if first else Source.TEMPLATE
        opened: list[Segment] = [(source, [self._start, *system, self._end, *self._newline])]
        return opened + self._turns(messages[len(first) :])

    def follow(self, messages: Sequence[Message], *, cut: bool) -> list[Segment]:
        """Return further messages and the opening of the assistant's turn."""
        closing = [self._end] if cut else []
        return [(Source.TEMPLATE, [*closing, *self._newline]), *self._turns(messages)]

    def _turns(self, messages: Sequence[Message]) -> list[Segment]:
        found: list[Segment] = []
        for message in messages:
            source = Source.TOOL if message.role == "tool" else Source.USER
            found.append((Source.TEMPLATE, [self._start, *self.tokenizer.encode(f"{message.role}\n")]))
            found.append((source, self.tokenizer.encode(message.text)))
            found.append((Source.TEMPLATE, [self._end, *self._newline]))
        return [*found, (Source.TEMPLATE, [self._start, *self.tokenizer.encode("assistant\n")])]


def system_text(tools: Sequence[ToolSchema], instruction: str = "") -> str:
    """Return the system turn of a template that has one: how a call is written, and the tools."""
    return "\n".join([*([instruction] if instruction else []), *(signature(t) for t in tools)])


_SHORT = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


def signature(tool: ToolSchema) -> str:
    """Return a tool in one line: `name(a: int, b?: str (hint)) - first sentence`.

    A hint is the first sentence of an argument's description; environments cut it to the length they want.
    """
    required = set(tool.parameters.get("required", []))
    parts = []
    for key, schema in tool.parameters.get("properties", {}).items():
        text = f"{key}{'' if key in required else '?'}: {_type_text(schema)}"
        hint = _first_sentence(schema.get("description", ""))
        if hint and not schema.get("enum") and schema.get("type") in ("string", "array"):
            text += f" ({hint})"
        parts.append(text)
    about = _first_sentence(tool.description)
    return f"{tool.name}({', '.join(parts)})" + (f" - {about}" if about else "")


def _first_sentence(text: str) -> str:
    return text.strip().split(". ")[0].rstrip(".")


def _type_text(schema: dict[str, Any]) -> str:
    if schema.get("enum"):
        return "|".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    kind = schema.get("type", "any")
    name = _SHORT.get(kind, kind) if isinstance(kind, str) else "any"
    if name == "list" and isinstance(schema.get("items"), dict) and schema["items"]:
        return f"list[{_type_text(schema['items'])}]"
    if name == "dict" and schema.get("properties"):
        return "{" + ", ".join(f"{k}: {_type_text(v)}" for k, v in schema["properties"].items()) + "}"
    return name
