"""What sampler server and client say to each other: JSON, strict on both sides."""

from typing import Any

from specs.errors import RolloutError
from tasks.protocols import Completion, SampleRequest, SamplingSettings

MAX_BODY = 256 * 2**20
"""Bytes of the largest request that a server reads."""


def request_to(request: SampleRequest) -> dict[str, Any]:
    """Return a request as JSON."""
    settings = request.settings
    return {
        "session": request.session,
        "ids": request.ids,
        "seed": request.seed,
        "temperature": settings.temperature,
        "max_new_tokens": settings.max_new_tokens,
        "stop_ids": list(settings.stop_ids),
    }


def request_from(data: Any) -> SampleRequest:
    """Return the request in `data`. RolloutError for anything that `request_to` does not write."""
    try:
        values = dict(data)
        settings = SamplingSettings(
            _number(values.pop("temperature")),
            _whole(values.pop("max_new_tokens")),
            tuple(_ids(values.pop("stop_ids"))),
        )
        request = SampleRequest(
            _whole(values.pop("session")), _ids(values.pop("ids")), _whole(values.pop("seed")), settings
        )
    except (KeyError, TypeError, ValueError) as e:
        raise RolloutError(f"sampler: a request that cannot be read ({type(e).__name__}: {e})") from e
    if values or settings.temperature < 0:
        raise RolloutError(f"sampler: a request with unknown or impossible values ({sorted(values)})")
    return request


def completion_to(completion: Completion) -> dict[str, Any]:
    """Return a completion as JSON; logprobs keep every digit."""
    return {
        "ids": completion.ids,
        "logprobs": completion.logprobs,
        "finish": completion.finish,
        "policy_version": completion.policy_version,
    }


def completion_from(data: Any) -> Completion:
    """Return the completion in `data`. RolloutError where ids and logprobs do not go together."""
    try:
        completion = Completion(
            _ids(data["ids"]),
            [_number(x) for x in data["logprobs"]],
            str(data["finish"]),
            str(data["policy_version"]),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise RolloutError(f"sampler: an answer that cannot be read ({type(e).__name__}: {e})") from e
    if len(completion.ids) != len(completion.logprobs) or completion.finish not in ("stop", "length"):
        raise RolloutError("sampler: an answer whose ids and logprobs differ in number, or of unknown finish")
    return completion


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _ids(value: Any) -> list[int]:
    if type(value) is not list:
        raise TypeError("ids are no list")
    return [_whole(v) for v in value]
