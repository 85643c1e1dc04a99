"""Replies of a model server that went wrong, by name, with the word that each is counted under."""

import json
import math
from collections.abc import Callable
from typing import Any

from tests.tasks.episodes.completions_server import Reply
from tests.tasks.teachers.scored import VOCABULARY


def cut(result: dict[str, Any]) -> Reply:
    content = json.dumps(result).encode()
    return Reply(200, content[: len(content) // 2], missing=len(content) // 2)


def instead(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a reply with other fields in its choice; None takes one away."""

    def spoil(result: dict[str, Any]) -> dict[str, Any]:
        changed = {name: value(result["choices"][0]) if callable(value) else value for name, value in fields.items()}
        choice = {k: v for k, v in (result["choices"][0] | changed).items() if v is not None}
        return {"choices": [choice]}

    return spoil


def last_place(**entry: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a reply whose last place lists other numbers: `own` is the token that stands there."""

    def other(choice: dict[str, Any]) -> list[Any]:
        (*before, last) = choice["prompt_logprobs"]
        first, *_ = last
        return [*before, {first if n == "own" else n.removeprefix("t"): {"logprob": v} for n, v in entry.items()}]

    return instead(prompt_logprobs=other)


SPOILED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "server_error": (lambda _: Reply(500, b'{"error": {"message": "out of memory"}}'), "teacher_unavailable"),
    "busy": (lambda _: Reply(429, b"{}", {"Retry-After": "0"}), "rate_limited"),
    "refused": (lambda _: Reply(400, b'{"error": {"message": "too long"}}'), "bad_request"),
    "cut": (cut, "teacher_unavailable"),
    "not_json": (lambda _: Reply(200, b"<html>"), "not_json"),
    "error_body": (lambda _: {"error": "no"}, "error_body"),
    "short": (instead(prompt_logprobs=lambda c: c["prompt_logprobs"][:-1]), "other_ids"),
    "other_ids": (instead(prompt_token_ids=lambda c: [*c["prompt_token_ids"][:-1], 0]), "other_ids"),
    "own_missing": (
        instead(
            prompt_token_ids=None,
            prompt_logprobs=lambda c: [None, *[{"0": {"logprob": -1.0}}] * (len(c["prompt_logprobs"]) - 1)],
        ),
        "other_ids",
    ),
    "none": (instead(prompt_logprobs=None), "no_prompt_logprobs"),
    "null_place": (instead(prompt_logprobs=lambda c: [*c["prompt_logprobs"][:-1], None]), "missing_logprobs"),
    "nan": (last_place(own=math.nan), "not_finite"),
    "null": (last_place(own=None), "not_finite"),
    "infinite": (last_place(own=-math.inf), "not_finite"),
    "logits": (last_place(own=3.5), "not_probabilities"),
    "strange": (last_place(own=-1.0, **{f"t{VOCABULARY}": -9.0}), "strange_id"),
}
FINAL = ("refused", "nan", "null", "infinite", "logits", "strange")


def spoiled(how: str, result: dict[str, Any]) -> Any:
    """Return what a server that is wrong in one way answers."""
    return SPOILED[how][0](result)
