"""From what a chat API sent to an answer, or to the reason why it is none. Pure.

A reply that is empty, cut or refused is no answer, whatever its status says.
"""

import email.utils
import json
import time
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
RETRIED = frozenset((
    "teacher_unavailable", "rate_limited", "not_json", "error_body", "no_choices", "cut", "empty", "empty_length",
    "cut_length", "too_long",
))  # fmt: skip
"""Failures after which the same question is asked again."""
LONGER = frozenset(("empty_length", "cut_length"))
"""Failures after which it is asked with a larger budget of tokens."""
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
"""Statuses after which no other question would be answered either."""


@dataclass(frozen=True, slots=True)
class Read:
    """What was read from a reply."""

    outcome: str
    text: str | None = None
    finish: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    detail: str | None = None


def refused(status: int, body: bytes, secret: str | None) -> Read:
    """Return what a status other than 200 says, with the start of the server's words and never the key."""
    text = body.decode("utf-8", "replace")
    try:
        told = _map(_map(json.loads(text)).get("error")).get("message")
    except ValueError:
        told = None
    words = " ".join(str(told or "").split())
    if secret:
        words = words.replace(secret, "(not shown)")
    return Read(of_status(status), detail=words[:MOST_WORDS] or None)


def of_status(status: int) -> str:
    """Return what a status other than 200 means: `fatal`, a failure that is tried again, or `bad_request`."""
    if status in FATAL:
        return "fatal"
    if status == 429:
        return "rate_limited"
    return "teacher_unavailable" if status >= 500 or status in (408, 409, 425) or status < 400 else "bad_request"


def retry_after(value: str | None) -> float:
    """Return the seconds that a Retry-After header asks for; 0 where it asks for none that can be read."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0


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
    for line in body.decode("utf-8", "replace").splitlines():
        if not line.startswith("data:"):
            continue
        said = line[5:].strip()
        if said == "[DONE]":
            ended = True
            break
        try:
            event = _map(json.loads(said))
        except ValueError:
            return Read("cut" if seen else "not_json")
        seen = True
        if event.get("error"):
            return Read("error_body")
        usage = event.get("usage") or usage
        for choice in _list(event.get("choices"))[:1]:
            delta = _map(_map(choice).get("delta"))
            text.append(str(delta.get("content") or ""))
            refused = refused or bool(delta.get("refusal"))
            finish = _map(choice).get("finish_reason") or finish
    if not seen:
        return Read("no_choices" if ended else "not_json")
    if not ended or finish is None:
        return Read("cut", finish=None, **_tokens(usage))
    message = {"content": "".join(text), "refusal": "refused" if refused else None}
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
    if finish == "content_filter":
        return "content_filter"
    if message.get("refusal"):
        return "refused"
    blank = not isinstance(text, str) or not text.strip()
    if finish == "length":
        return "empty_length" if blank else "cut_length"
    if blank:
        return "empty"
    return "cut" if needs_end and not isinstance(finish, str) else OK


def _kept(text: Any) -> str | None:
    return text if isinstance(text, str) and text.strip() else None


def _word(finish: Any) -> str | None:
    return finish if isinstance(finish, str) else None


def _tokens(usage: Any) -> dict[str, Any]:
    data = _map(usage)
    found: dict[str, Any] = {}
    for ours, theirs in (("tokens_in", "prompt_tokens"), ("tokens_out", "completion_tokens")):
        value = data.get(theirs)
        found[ours] = value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
    return found


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
