"""What a server is asked about a row of token ids, and what its reply says of them. Pure.

vLLM's `/v1/completions` with ids as the prompt and `prompt_logprobs: K` gives for every place but the first the K likeliest
tokens and the one that stands there, at temperature 1. N places that are asked about, K listed tokens each.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]
Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_ROUNDING = 1e-3
"""How far above 0 a logprob, or the log of a list's mass, may lie: sums of floats are rounded."""


@dataclass(frozen=True, slots=True)
class Question:
    """A row, at which of its places the server is asked, and how many tokens it is to list there."""

    ids: tuple[int, ...]
    places: tuple[int, ...]
    """None is 0: nothing stands before the first token."""
    size: int = 0
    """0: the row's own tokens alone."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server says at the places asked about."""

    own_N: Floats
    """Logprobs of the row's own tokens; NaN of one that is not listed, of which nothing is known but that."""
    ids_NK: Ids
    """The likeliest tokens, the likeliest first; of equals the one with the lower id."""
    logprobs_NK: Floats


class UnusableError(Exception):
    """Why a reply is no answer: the reason that is counted, and words."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


def body(model: str, question: Question) -> Json:
    """Return the request. The one token that is generated is thrown away: servers generate at least one."""
    return {
        "model": model, "prompt": list(question.ids), "max_tokens": 1, "temperature": 0.0,
        "prompt_logprobs": question.size, "return_token_ids": True,
    }  # fmt: skip


def text_body(model: str, text: str) -> Json:
    """Return the request that shows how the server cuts a text into tokens, where it has no `/tokenize`."""
    return {
        "model": model, "prompt": text, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0,
        "add_special_tokens": False, "return_token_ids": True,
    }  # fmt: skip


def read(content: bytes, question: Question, vocabulary: int) -> Answer:
    """Return what a reply says of a row. UnusableError where it is cut, about other ids, incomplete or not a number."""
    listed, echoed = _listed(content)
    if len(listed) != len(question.ids) or (echoed is not None and echoed != list(question.ids)):
        raise UnusableError(
            "other_ids", f"it speaks of {len(listed)} tokens, {len(question.ids)} were sent, or of others"
        )
    rows = [_row(listed[place], question, vocabulary, place) for place in question.places]
    own = np.array([own for own, _ in rows], np.float32)
    if len(own) and np.isnan(own).all():
        raise UnusableError("other_ids", "it lists none of the tokens that were sent")
    shape = (len(rows), question.size)
    ids = np.array([[i for i, _ in best] for _, best in rows], np.int64).reshape(shape)
    logprobs = np.array([[p for _, p in best] for _, best in rows], np.float32).reshape(shape)
    return Answer(own, ids, logprobs)


def read_tokens(content: bytes) -> list[int | None]:
    """Return the ids that a text was cut into, from a reply to `text_body`; None of a first one that is not told."""
    listed, echoed = _listed(content)
    if echoed is not None:
        return list(echoed)
    ids: list[int | None] = [None]
    for entry in listed[1:]:
        found = [int(key) for key in entry or {} if key.isdecimal()]
        if len(found) != 1:
            raise UnusableError("no_prompt_logprobs", "it does not list the one token that stands at a place")
        ids.append(found[0])
    return ids


def _listed(content: bytes) -> tuple[list[Json | None], list[int] | None]:
    """Return what a reply lists by place, and the ids that it repeats where it does."""
    try:
        data: Any = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise UnusableError("not_json", f"it is no JSON, or was cut ({len(content)} bytes)") from e
    if not isinstance(data, dict) or data.get("error"):
        raise UnusableError("error_body", f"it says {str(data)[:200]}")
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    listed, echoed = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if not isinstance(listed, list) or not all(x is None or isinstance(x, dict) for x in listed):
        raise UnusableError("no_prompt_logprobs", "it holds no prompt_logprobs; vLLM's API is meant")
    return listed, echoed if isinstance(echoed, list) else None


def _row(entry: Json | None, question: Question, vocabulary: int, place: int) -> tuple[float, list[tuple[int, float]]]:
    """Return the own token's logprob, NaN where it is not listed, and the likeliest tokens at a place."""
    if not entry:
        raise UnusableError("missing_logprobs", f"it holds no logprobs at place {place}")
    found: dict[int, float] = {}
    for key, told in entry.items():
        value = told.get("logprob") if isinstance(told, dict) else told
        if not key.isdecimal() or int(key) >= vocabulary:
            raise UnusableError("strange_id", f"it lists the token {key[:20]!r}, expected ids below {vocabulary}")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise UnusableError("not_finite", f"it gives the logprob {value} at place {place}")
        found[int(key)] = float(value)
    best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[: question.size]
    if len(best) < question.size:
        raise UnusableError(
            "short_list", f"it lists {len(best)} tokens at place {place}, {question.size} were asked for"
        )
    mass = math.fsum(math.exp(min(p, 1.0)) for p in found.values())
    if mass > 1.0 + _ROUNDING:
        raise UnusableError("not_probabilities", f"the probabilities that it lists at place {place} sum to {mass:.3f}")
    return found.get(question.ids[place], math.nan), best
