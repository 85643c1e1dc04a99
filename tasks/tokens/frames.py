"""The marks of a conversation: reading a policy's tokens as messages, and writing messages in a teacher's own marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specs.errors import ProgramError
from specs.records import Source
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.template import Role
from tasks.tokens.tokenizer import CHATML_SPECIALS, COMPACT_SPECIALS

FrameName = Literal["builtin/compact@1", "builtin/chatml@1", "builtin/plain@1"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
_COMPACT: dict[Role, str] = {
    "system": "<|system|>", "user": "<|user|>", "assistant": "<|call|>", "tool": "<|result|>"
}  # fmt: skip
_ROLE_OF: dict[str, Role] = {role: role for role in ROLES}
_BEGIN = ("<s>", "<bos>", "<|begin_of_text|>", "[CLS]")
_END = ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[SEP]")


@dataclass(frozen=True, slots=True)
class Part:
    """One message as a policy's tokens hold it: its text is `ids[start:end]`."""

    role: Role
    start: int
    end: int
    stopped: bool
    """The token at `end` closes it."""
    ended: bool
    """Who wrote the text closed it too: a reply that was cut is closed by a token that stands there for it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the text of each role."""

    name: FrameName
    begin: tuple[int, ...]
    """Before everything."""
    opening: dict[Role, tuple[int, ...]]
    stop: int | None
    """Closes a message; what the policy's own stop token is compared with. None where the tokenizer has no such token."""
    after: tuple[int, ...]
    """Between a closed message and the next opening."""
    specials: frozenset[int]
    """Ids that are marks and no text."""


def frame_for(name: FrameName, tokenizer: AnyTokenizer, where: str) -> Frame:
    """Return the marks of a template in a tokenizer's ids. ProgramError where it lacks the special tokens."""
    match name:
        case "builtin/compact@1":
            _wanted(tokenizer, COMPACT_SPECIALS, name, where)
            wanted = {content: token for token, content in tokenizer.specials.items()}
            opening: dict[Role, tuple[int, ...]] = {role: (wanted[mark],) for role, mark in _COMPACT.items()}
            return Frame(name, (), opening, wanted["<|end|>"], (), frozenset(tokenizer.specials))
        case "builtin/chatml@1":
            _, start, stop = _wanted(tokenizer, CHATML_SPECIALS, name, where)
            opening = {role: (start, *tokenizer.ids(f"{role}\n")) for role in ROLES}
            return Frame(name, (), opening, stop, tuple(tokenizer.ids("\n")), frozenset(tokenizer.specials))
        case "builtin/plain@1":
            begin, end = (
                next((t for m in marks if (t := tokenizer.special(m)) is not None), None) for marks in (_BEGIN, _END)
            )
            opening = {role: tuple(tokenizer.ids(f"{role}:")) for role in ROLES}
            first = () if begin is None else (begin,)
            return Frame(name, first, opening, end, tuple(tokenizer.ids("\n")), frozenset(tokenizer.specials))


def _wanted(tokenizer: AnyTokenizer, marks: Sequence[str], name: str, where: str) -> list[int]:
    found = {mark: tokenizer.special(mark) for mark in marks}
    if missing := sorted(mark for mark, token in found.items() if token is None):
        raise ProgramError(
            f"{where}: the template {name} needs the special tokens {', '.join(missing)}, which its tokenizer does not "
            "have; expected a template that the teacher was trained with: builtin/plain@1 needs none"
        )
    return [token for token in found.values() if token is not None]


def parts(ids: Sequence[int], sources: Sequence[int], frame: Frame, tokenizer: AnyTokenizer) -> list[Part]:
    """Return the messages of a conversation written with `frame`. A special token that the policy wrote is no mark."""
    marks = [i for i, token in enumerate(ids) if token in frame.specials and _is_mark(ids, sources, i, frame)]
    roles: dict[int, Role] = {}
    if frame.name == "builtin/compact@1":
        roles = {opening[0]: role for role, opening in frame.opening.items()}
    found: list[Part] = []
    for number, at in enumerate(marks):
        token = ids[at]
        if token == frame.stop:
            continue
        if roles and token not in roles:
            continue
        end = marks[number + 1] if number + 1 < len(marks) else len(ids)
        role, start = (roles[token], at + 1) if roles else _named_role(ids, at, end, tokenizer)
        stopped = end < len(ids) and ids[end] == frame.stop
        ended = stopped and (role != "assistant" or sources[end] == Source.POLICY)
        found.append(Part(role, start, end, stopped, ended))
    return found


def _is_mark(ids: Sequence[int], sources: Sequence[int], at: int, frame: Frame) -> bool:
    """Return whether a special token is one of the conversation: all but those inside what the policy wrote."""
    if sources[at] != Source.POLICY:
        return True
    last = at + 1 == len(ids) or sources[at + 1] != Source.POLICY
    return last and ids[at] == frame.stop


def _named_role(ids: Sequence[int], at: int, end: int, tokenizer: AnyTokenizer) -> tuple[Role, int]:
    """Return the role that is written behind an opening mark, up to the end of the line, and where its text begins."""
    written = b""
    for place in range(at + 1, end):
        written += tokenizer.table[ids[place]]
        if written.endswith(b"\n"):
            name = written.decode("utf-8", errors="replace").strip()
            return _ROLE_OF.get(name, "user"), place + 1
    return "user", end
