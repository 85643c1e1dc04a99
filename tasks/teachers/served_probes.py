"""Proofs that a server has the model that is meant: its name, its room, its tokens, and logprobs that it gives again."""

import json
from dataclasses import dataclass
from typing import Any

from specs.errors import ProgramError, ServiceError
from tasks.teachers.client_scores import Result, ScoresClient
from tasks.teachers.prompt_logprobs import Question, UnusableError, read_tokens, text_body
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.equality import PROBES
from tasks.tokens.frames import Frame

_PROBE_TOKENS = 200
_LARGEST_MEAN = 0.05
"""Nats by which a token's logprob may move on average: batches, kernels and half precision move it by less, weights by more."""
_LEAD = "a"
"""Stands before a text whose first token would not be told."""


@dataclass(frozen=True, slots=True)
class Found:
    """What stands behind the address."""

    engine: str
    root: str
    """Where the server says that the weights come from; empty where it does not."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Ids, and the logprobs that these weights give them: what tells them from others under the same name."""

    ids: list[int]
    logprobs: list[float]
    """Of all ids but the first."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"ids": self.ids, "logprobs": self.logprobs}


def check_server(client: ScoresClient) -> Found:
    """Return what is served. ServiceError for a stranger, ProgramError where the model is another one or has no room."""
    name, spec = client.name, client.spec
    told = client.call("GET", "/v1/models")
    if told is None:
        raise ServiceError(
            f"teacher {name}: there is no /v1/models at teachers.{name}.url; expected a server that speaks vLLM's API"
        )
    models = {str(m.get("id")): m for m in _json(told).get("data") or [] if isinstance(m, dict)}
    if spec.model not in models:
        raise ProgramError(
            f"teachers.{name}.model: its server has no {spec.model!r}; expected one of {', '.join(models) or 'some model'}"
        )
    room = models[spec.model].get("max_model_len")
    if isinstance(room, int) and room <= spec.max_length:
        raise ProgramError(
            f"teachers.{name}.max_length: found {spec.max_length}, but its server takes {room} tokens, one of which it "
            f"generates; write at most {room - 1}, or start it with --max-model-len {spec.max_length + 1}"
        )
    version = _json(client.call("GET", "/version")).get("version")
    return Found(str(version or "of unknown version"), str(models[spec.model].get("root") or ""))


def check_encoding(client: ScoresClient, tokenizer: AnyTokenizer, frame: Frame) -> None:
    """Raise ProgramError, naming text and ids, where the server's tokenizer or special tokens are not these."""
    contents = tokenizer.specials
    wanted = {text: tokenizer.ids(text) for text in PROBES if text and not any(c in text for c in contents.values())}
    marks = {*frame.begin, *(i for ids in frame.opening.values() for i in ids), frame.stop}
    wanted |= {contents[i]: [i] for i in sorted(i for i in marks if i in contents)}
    for text, ids in wanted.items():
        found, expected = _server_ids(client, tokenizer, text, ids)
        if found != expected:
            of = f"teachers.{client.name}.tokenizer" if client.spec.tokenizer else "the policy's tokenizer"
            raise ProgramError(
                f"teachers.{client.name}: its server cuts {text[:24]!r} into {_shown(found)}, {of} into {_shown(expected)}: "
                f"it has another tokenizer. Write teachers.{client.name}.tokenizer, the one that the served model came with; "
                "with tokens other than the policy's it can teach with over: {kind: sampled}"
            )


def fingerprint(client: ScoresClient, tokenizer: AnyTokenizer, size: int) -> Fingerprint:
    """Return the logprobs of fixed ids, asked for as rows are: with `size` likeliest tokens. ServiceError without them."""
    ids = [i for text in PROBES for i in tokenizer.ids(text)][: min(_PROBE_TOKENS, client.spec.max_length)]
    result = _ask(client, Question(tuple(ids), tuple(range(1, len(ids))), size), tokenizer.size)
    if result.answer is None:
        more = f" --max-logprobs {size}" if size else ""
        raise ServiceError(
            f"teacher {client.name}: its server gives no logprobs of a prompt ({result.reason}: {result.words}); expected "
            f"vLLM's /v1/completions with prompt_logprobs, started with logprobs, not logits (--logprobs-mode){more}"
        )
    return Fingerprint(ids, [float(x) for x in result.answer.own_N])


def check_fingerprint(client: ScoresClient, known: Fingerprint, vocabulary: int, size: int) -> None:
    """Raise ProgramError where the server gives other logprobs than when it was looked at first."""
    question = Question(tuple(known.ids), tuple(range(1, len(known.ids))), size)
    result = _ask(client, question, vocabulary)
    if result.answer is None:
        raise ServiceError(
            f"teacher {client.name}: its server does not score the probe any more ({result.reason}: {result.words}); see to "
            f"it at teachers.{client.name}.url, then run again"
        )
    gaps = [abs(a - b) for a, b in zip(known.logprobs, map(float, result.answer.own_N), strict=True)]
    mean = sum(gaps) / max(1, len(gaps))
    if not mean <= _LARGEST_MEAN:
        raise ProgramError(
            f"teacher {client.name}: its server gives the probe logprobs that are {mean:.3f} nats a token from those that "
            f"were recorded, expected at most {_LARGEST_MEAN:g}: other weights are served as {client.spec.model!r}. Write "
            f"another teachers.{client.name}.revision to learn from them, or serve the former ones again"
        )


def _ask(client: ScoresClient, question: Question, vocabulary: int) -> Result:
    found: dict[int, Result] = {}
    client.ask({0: question}, vocabulary, found.__setitem__)
    return found[0]


def _server_ids(
    client: ScoresClient, tokenizer: AnyTokenizer, text: str, ids: list[int]
) -> tuple[list[int | None], list[int | None]]:
    """Return what the server makes of a text and what is expected, as far as it tells."""
    data = {"model": client.spec.model, "prompt": text, "add_special_tokens": False}
    told = client.call("POST", "/tokenize", data)
    if told is not None:
        return list(_json(told).get("tokens") or []), list[int | None](ids)
    lead = tokenizer.ids(_LEAD)
    expected = [*lead, *ids] if ids[0] in tokenizer.specials else tokenizer.ids(_LEAD + text)
    reply = client.call("POST", "/v1/completions", text_body(client.spec.model, _LEAD + text))
    try:
        found = read_tokens(reply or b"")
    except UnusableError as e:
        raise ServiceError(
            f"teacher {client.name}: its server has no /tokenize and does not say how it cuts a text ({e}); expected vLLM's API"
        ) from e
    return found, [None if at == 0 and found[:1] == [None] else i for at, i in enumerate(expected)]


def _json(content: bytes | None) -> dict[str, Any]:
    try:
        data: Any = json.loads(content or b"{}")
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {}


def _shown(ids: list[int | None]) -> str:
    return f"{ids[:6]} ({len(ids)} ids)"
