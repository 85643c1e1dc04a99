"""The client of a server that speaks vLLM's HTTP API: many completions at once, one retry layer, one deadline.

A server that cannot be reached after the retries, or gives no answer in time, is GoneError; what it refuses is
RolloutError. Nothing is asked twice that could count twice: the same request gives the same tokens.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import httpx

from specs.errors import Interrupted, RolloutError, ServiceError
from tasks.boundary import foreign, reason_of

Json = dict[str, Any]
ATTEMPTS = 3
"""Times that one request is sent to a server that lives."""
_PAUSE = 0.2  # seconds before the second attempt; each further one waits four times as long
_LOOK = 0.2  # seconds between two looks at `stop` and the deadline
MAX_ANSWER = 256 * 2**20
"""Bytes of the largest answer that is read: a long context's ids and logprobs are a few tens of MiB."""
_CONTROL_SECONDS = 120.0
"""Longest wait for anything but completions: loading weights takes seconds."""


class GoneError(ServiceError):
    """The server has died, or does not answer."""


class _BusyError(ServiceError):
    """The server answered that it cannot answer now."""


class CompletionsClient:
    """Talks to one server. Not for several threads at once."""

    def __init__(
        self,
        url: str,
        *,
        in_flight: int,
        seconds: float,
        alive: Callable[[], bool] = lambda: True,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url.rstrip("/")
        self._seconds, self._in_flight = seconds, in_flight
        self._alive, self._stop = alive, stop
        self._runner = asyncio.Runner()
        limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
        timeout = httpx.Timeout(None, connect=10.0)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout, limits=limits, trust_env=False)

    def close(self) -> None:
        """Close every connection; the server drops what it still computes for them."""
        if not self._http.is_closed:
            self._runner.run(self._http.aclose())
            self._runner.close()

    def get(self, path: str) -> Json:
        """Return what the server says at `path`."""
        return self._runner.run(self._within(_CONTROL_SECONDS, self._ask("GET", path, None)))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """Return the answer to a request that changes or asks something; an empty one is an empty map."""
        return self._runner.run(self._within(_CONTROL_SECONDS, self._ask("POST", path, body)))

    def complete(self, bodies: Mapping[int, Json], done: dict[int, Json]) -> None:
        """Put the answer to each body under its key into `done`, also where it raises before all are there."""
        self._runner.run(self._within(self._seconds, self._complete(bodies, done)))

    async def _complete(self, bodies: Mapping[int, Json], done: dict[int, Json]) -> Json:
        gate = asyncio.Semaphore(self._in_flight)

        async def one(key: int, body: Json) -> None:
            async with gate:
                done[key] = await self._ask("POST", "/v1/completions", body)

        tasks = [asyncio.ensure_future(one(key, body)) for key, body in bodies.items()]
        try:
            await asyncio.gather(*tasks)
        finally:  # after a failure none is left running, so the server computes nothing that nobody reads
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return {}

    async def _within(self, seconds: float, work: Coroutine[Any, Any, Json]) -> Json:
        """Wait for `work`, but not beyond the deadline, nor for longer than `stop` allows."""
        task = asyncio.ensure_future(work)
        until = time.monotonic() + seconds
        try:
            while not (await asyncio.wait([task], timeout=_LOOK))[0]:
                if self._stop():
                    raise Interrupted("stopped while the model server was asked")
                if time.monotonic() > until:
                    raise GoneError(
                        f"{self.url}: no whole answer within {seconds:.0f} s; where the machine is only slow, raise "
                        "run.sampler.request_seconds or lower run.rollout_batch"
                    )
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Json:
        pause = _PAUSE
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(method, path, body)
            except ServiceError as e:
                if attempt == ATTEMPTS or not self._alive():
                    raise GoneError(str(e)) from e
            await asyncio.sleep(pause)
            pause *= 4
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> Json:
        with foreign(f"{self.url}{path}", lambda e: f"no answer ({reason_of(e)})"):
            status, content = await self._read(method, path, body)
        said = content[:2000].decode(errors="replace")
        if status in (408, 429) or status >= 500:
            raise _BusyError(f"{self.url}{path}: answered {status}: {said[:300]}")
        if status != 200:
            raise RolloutError(f"{self.url}{path}: refused with {status}: {said[:500]}")
        if not content:
            return {}
        with foreign(f"{self.url}{path}", lambda e: f"answered without JSON ({reason_of(e)}); is it a model server?"):
            data = json.loads(content)
        if not isinstance(data, dict) or "error" in data:
            raise RolloutError(f"{self.url}{path}: answered {str(data)[:300]}, expected a result")
        return data

    async def _read(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """Return status and body of an answer, read piece by piece. RolloutError for one without end."""
        content = bytearray()
        async with self._http.stream(method, path, json=body) as reply:
            async for piece in reply.aiter_bytes():
                content += piece
                if len(content) > MAX_ANSWER:
                    raise RolloutError(
                        f"{self.url}{path}: answered more than {MAX_ANSWER} bytes, expected a result; is it a model server?"
                    )
        return reply.status_code, bytes(content)
