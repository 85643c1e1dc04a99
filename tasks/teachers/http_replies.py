"""From what a chat API sent to an answer, or to the reason why it is none. Pure.

A reply that is empty, cut or refused is no answer, whatever its status says.
"""

import email.utils
import json
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from specs.strict_json import parse
from tasks.teachers.ledger import OK

MOST_BYTES = 8 << 20
"""A longer reply is none."""
MOST_ERROR = 64 << 10
"""Bytes of a refusal that are read."""
MOST_WORDS = 300
"""Characters of a server's words that are told."""
MOST_TOKENS = 10**9
"""A reply that is said to have more was not counted."""
RETRIED = frozenset((
    "teacher_unavailable", "rate_limited", "not_json", "error_body", "no_choices", "cut", "empty", "too_long",
))  # fmt: skip
"""Failures after which the same question is asked again."""
LONGER = frozenset(("empty_length", "cut_length"))
"""Failures after which it is asked with a larger budget of tokens, where there is one."""
ABSENT = frozenset((
    "teacher_unavailable", "rate_limited", "not_json", "error_body", "no_choices", "cut", "deadline", "too_long",
))  # fmt: skip
"""Failures that are the teacher's, whatever the question was."""
FATAL = {
    401: "the key is not accepted",
    402: "it wants to be paid",
    403: "it is not allowed",
    404: "there is no such model",
}
"""Statuses after which no other question would be answered either; one that points elsewhere is another."""
ELSEWHERE = "it points to another address, and nothing is sent there"
_FILTERED = frozenset(("content_filter", "safety", "prohibited_content", "recitation"))
_LENGTH = frozenset(("length", "max_tokens", "model_length"))
_BROKEN_OFF = frozenset(("abort", "aborted", "cancelled", "error", "insufficient_system_resource", "timeout"))
"""How providers call the end of a reply that was filtered, cut for length, or given up."""
_WORD = 40
_TAIL = 32
_LINES = re.compile(r"\r\n|\n|\r")
"""Between the lines of a stream; a text may hold other breaks."""


@dataclass(frozen=True, slots=True)
class Read:
    """What was read from a reply."""

    outcome: str
    text: str | None = None
    finish: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    detail: str | None = None


def enough(data: bytearray, *, good: bool) -> bool:
    """Return whether no more needs to be read: it is too long, or a stream has ended though its connection stays."""
    if len(data) > (MOST_BYTES if good else MOST_ERROR):
        return True
    return data.startswith(b"data:") and data[-_TAIL:].rstrip().endswith(b"\ndata: [DONE]")


def unpacked(data: bytes, encoding: str) -> bytes:
    """Return a body as it was before it was packed, no more than is looked at; nothing where it cannot be."""
    match encoding.strip().lower():
        case "" | "identity":
            return data
        case "gzip" | "x-gzip":
            try:
                return zlib.decompressobj(wbits=31).decompress(data, MOST_BYTES + 1)
            except zlib.error:
                return b""
        case _:
            return b""


def refused(status: int, body: bytes, hide: Callable[[str], str | None]) -> Read:
    """Return what a status other than 200 says, with the start of the server's words and never a secret."""
    text = body.decode("utf-8", "replace")
    try:
        told = _map(_map(_loads(text)).get("error")).get("message")
    except ValueError:
        told = None
    words = hide(" ".join(str(told or "").split())) or ""
    return Read(of_status(status), detail=words[:MOST_WORDS] or None)


def of_status(status: int) -> str:
    """Return what a status other than 200 means: `fatal`, a failure that is tried again, or `bad_request`."""
    if status in FATAL or 300 <= status < 400:
        return "fatal"
    if status == 429:
        return "rate_limited"
    return "teacher_unavailable" if status >= 500 or status in (408, 409, 425) or status < 400 else "bad_request"


def retry_after(value: str | None, date: str | None) -> float:
    """Return the seconds that a Retry-After header asks for; 0 where it asks for none that can be read.

    A moment is told by the server's clock, so it is compared with the reply's own `date` where there is one.
    """
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        moment, now = _moment(value), _moment(date or "")
        return 0.0 if moment is None else max(0.0, moment - (time.time() if now is None else now))


def _moment(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def read_body(body: bytes) -> Read:
    """Return what a whole reply says."""
    try:
        data = parse(body.decode("utf-8"))
    except (ValueError, UnicodeDecodeError):
        return Read("not_json")
    return _read(data, needs_end=True)


def read_stream(body: bytes) -> Read:
    """Return what a streamed reply says; one without its end marker was cut."""
    text: list[str] = []
    refused, finish, usage, ended, seen = False, None, None, False, False
    for line in _lines(body):
        if not line.startswith("data:"):
            continue
        said = line[5:].strip()
        if said == "[DONE]":
            ended = True
            break
        try:
            event = _map(_loads(said))
        except ValueError:
            return Read("cut" if seen else "not_json")
        seen = True
        if event.get("error"):
            return Read("error_body")
        usage = event.get("usage") or usage
        for choice in _list(event.get("choices"))[:1]:
            delta = _map(_map(choice).get("delta"))
            text.append(part if isinstance(part := delta.get("content"), str) else "")
            refused = refused or bool(delta.get("refusal"))
            finish = _map(choice).get("finish_reason") or finish
    if not seen:
        return Read("no_choices" if ended else "not_json")
    if not ended or finish is None:
        return Read("cut", finish=None, **_tokens(usage))
    try:  # halves of a character that came in two parts are one; half a character alone is none
        said = "".join(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return Read("not_json", **_tokens(usage))
    message = {"content": said, "refusal": "refused" if refused else None}
    return _read({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}, needs_end=True)


def _read(data: Any, *, needs_end: bool) -> Read:
    body = _map(data)
    tokens = _tokens(body.get("usage"))
    if body.get("error"):
        return Read("error_body", **tokens)
    choices = _list(body.get("choices"))
    if not choices:
        return Read("no_choices", **tokens)
    choice = _map(choices[0])
    message = _map(choice.get("message"))
    finish, text = choice.get("finish_reason"), message.get("content")
    if isinstance(text, list):  # parts, of which the texts count
        text = "".join(str(_map(p).get("text") or "") for p in cast("list[Any]", text))
    return Read(_outcome(finish, text, message, needs_end=needs_end), _kept(text), _word(finish), **tokens)


def _outcome(finish: Any, text: Any, message: dict[str, Any], *, needs_end: bool) -> str:
    word = finish.lower() if isinstance(finish, str) else None
    if word in _FILTERED:
        return "content_filter"
    if message.get("refusal"):
        return "refused"
    blank = not isinstance(text, str) or not text.strip()
    if word in _LENGTH:
        return "empty_length" if blank else "cut_length"
    if word in _BROKEN_OFF:
        return "cut"
    if blank:
        return "empty"
    return "cut" if needs_end and word is None else OK


def _kept(text: Any) -> str | None:
    return text if isinstance(text, str) and text.strip() else None


def _word(finish: Any) -> str | None:
    return finish[:_WORD] if isinstance(finish, str) else None


def _tokens(usage: Any) -> dict[str, Any]:
    data = _map(usage)
    found: dict[str, Any] = {}
    for ours, theirs in (("tokens_in", "prompt_tokens"), ("tokens_out", "completion_tokens")):
        value = data.get(theirs)
        sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
        found[ours] = value if sound else None
    return found


def _lines(body: bytes) -> list[str]:
    try:
        return _LINES.split(body.decode("utf-8"))
    except UnicodeDecodeError:
        return []


def _loads(text: str) -> Any:
    """Return the value of a JSON text. ValueError for anything that is none, nesting without end too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
