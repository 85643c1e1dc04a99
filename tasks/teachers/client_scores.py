"""The client of a server that scores rows of token ids: many at once, one retry layer, one deadline for each row.

A row that brings no answer is a result with its reason; only what no row could get past (a key, a model's name, a server
that stays away) ends the round.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from specs.errors import Interrupted, ServiceError, TeacherError
from specs.served_teacher import ServedModelTeacher
from tasks.boundary import foreign, reason_of
from tasks.teachers import http_replies
from tasks.teachers.breaker import Breaker
from tasks.teachers.common import Common
from tasks.teachers.limits import Pace
from tasks.teachers.prompt_logprobs import Answer, Question, UnusableError, body, read
from tasks.teachers.reaching import Reach, reach, trust

_LOOK = 0.1
_TICK = 0.01
"""Seconds between looks for questions that have come since."""
_CONNECT_SECONDS = 10.0
_ENTRY_BYTES = 1024
"""Most that a reply may need for one listed token."""
_MOST_BYTES = 4 << 20
"""Most that it may need beside these."""
_ABSENT = frozenset(("teacher_unavailable", "rate_limited", "deadline", "not_json", "error_body", "too_long"))
"""Failures that are the server's, whatever was asked."""
_AS_OFTEN = frozenset(("bad_request", "not_finite", "strange_id", "short_list", "not_probabilities"))
"""Failures that the same question would meet again."""
_NOT_THERE = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a question: an answer, or the reason why there is none, and the requests that it took."""

    answer: Answer | None
    reason: str = ""
    words: str = ""
    requests: int = 0


Take = Callable[[int, Result], object]
"""What takes the result of a numbered question."""
More = Callable[[], Mapping[int, Question] | None]
"""What returns the questions that have come since, by number; None where none will. It raises where the round is given up."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where a server is asked from. `environ` holds what references name; it is looked at when a round begins."""

    environ: Mapping[str, str] = field(repr=False)
    folder: Path
    """Where those who ask at the same time keep what they have in common, by teacher."""
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int, int], object] = lambda done, total: None
    clock: Callable[[], float] = time.monotonic


class ScoresClient:
    """Asks one server, a bounded number of rows at once."""

    def __init__(self, name: str, spec: ServedModelTeacher, circumstances: Circumstances) -> None:
        self.name = name
        self.spec = spec
        self.circumstances = circumstances

    def call(self, method: str, path: str, data: Mapping[str, Any] | None = None) -> bytes | None:
        """Return what the server says at a path, None where it has no such path. ServiceError where it says nothing."""
        return asyncio.run(self._call(method, path, data))

    def ask(self, questions: Mapping[int, Question], vocabulary: int, take: Take) -> None:
        """Hand the result of each question to `take` as soon as it is there.

        Raises Interrupted where it is asked to stop, TeacherError where no further question would be answered.
        """
        if questions:
            once = iter([questions])
            _Round(self, vocabulary, take, len(questions)).run(lambda: next(once, None))

    def follow(self, more: More, vocabulary: int, take: Take) -> None:
        """Do the same for questions that come little by little; those of a batch go out the longest first."""
        _Round(self, vocabulary, take).run(more)

    def connection(self) -> httpx.AsyncClient:
        """Return the connections of one round; no redirect is followed, and no proxy of the environment used."""
        most = self.spec.limits.in_flight
        limits = httpx.Limits(max_connections=most, max_keepalive_connections=most)
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        return httpx.AsyncClient(
            limits=limits, timeout=timeout, follow_redirects=False, trust_env=False, verify=trust()
        )

    def to(self) -> Reach:
        """Return where it is."""
        return reach(self.name, self.spec, self.circumstances.environ)

    async def _call(self, method: str, path: str, data: Mapping[str, Any] | None) -> bytes | None:
        limits, to = self.spec.limits, self.to()
        words = ""
        async with self.connection() as http:
            for attempt in range(1, limits.attempts + 1):
                if attempt > 1:
                    await asyncio.sleep(limits.wait_seconds * 2 ** (attempt - 2))
                try:
                    async with asyncio.timeout(limits.deadline_seconds):
                        status, content, _ = await exchange(http, to, method, path, data, _MOST_BYTES)
                except TimeoutError:
                    words = f"{path}: no whole reply within {limits.deadline_seconds:g} s"
                except ServiceError as e:
                    words = str(to.hide(str(e)))
                else:
                    if status == 200:
                        return content
                    if status in _NOT_THERE:
                        return None
                    words = f"{path}: it answered {status}{_told(status, content, to)}"
                    if http_replies.of_status(status) in ("fatal", "bad_request"):
                        break
        raise ServiceError(
            f"teacher {self.name}: {words}; see that its server runs at teachers.{self.name}.url, then run again"
        )


async def exchange(
    http: httpx.AsyncClient, to: Reach, method: str, path: str, data: Mapping[str, Any] | None, most: int
) -> tuple[int, bytes, float]:
    """Return status and content of a reply, and for how long the server wants no request. ServiceError where it broke."""
    content = bytearray()
    with foreign(path, lambda e: f"no whole reply ({reason_of(e)})"):
        async with http.stream(method, f"{to.address}{path}", json=data, headers=to.headers) as reply:
            async for piece in reply.aiter_bytes():
                content += piece
                if len(content) > most:
                    break
    held = http_replies.retry_after(reply.headers.get("Retry-After"), reply.headers.get("Date"))
    return reply.status_code, bytes(content), held if reply.status_code != 200 else 0.0


def _told(status: int, content: bytes, to: Reach) -> str:
    detail = http_replies.refused(status, content[: http_replies.MOST_ERROR], to.hide).detail
    return f": {detail}" if detail else ""


class _Round:
    """The questions of one call, under one event loop. `total`: how many there are, where that is known."""

    def __init__(self, client: ScoresClient, vocabulary: int, take: Take, total: int | None = None) -> None:
        self._client, self._vocabulary, self._take, self._total = client, vocabulary, take, total
        self._limits, self._around = client.spec.limits, client.circumstances
        self.common = Common(self._around.folder / client.name, self._limits, self._around.clock)
        self._pace = Pace(self.common)
        self._breaker = Breaker(client.name, self.common)
        self._to = client.to()
        self._done = 0

    def run(self, more: More) -> None:
        with self.common.enter():
            asyncio.run(self._run(more))

    async def _run(self, more: More) -> None:
        pending = set[asyncio.Task[None]]()
        async with self._client.connection() as http:
            try:
                while (found := more()) is not None or pending:
                    pending |= {asyncio.create_task(self._one(http, n, q)) for n, q in _longest_first(found or {})}
                    pending = await self._ended(pending, _LOOK if found is None else _TICK)
                    if pending and self._around.stop():
                        raise Interrupted(f"teacher {self._client.name}: asked to stop; what was scored is kept")
            finally:
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)

    async def _ended(self, pending: "set[asyncio.Task[None]]", seconds: float) -> "set[asyncio.Task[None]]":
        """Wait so long, or until something ends the round; return what is still under way."""
        if not pending:
            await asyncio.sleep(seconds)
            return pending
        done, left = await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return left

    async def _one(self, http: httpx.AsyncClient, number: int, question: Question) -> None:
        async with self._pace.place():
            while self._breaker.open and not self._breaker.trial(question):
                await asyncio.sleep(min(_LOOK, max(0.01, self._breaker.pause)))
            try:
                result = await self._asked(http, question)
                if result.reason in _ABSENT:
                    self._breaker.bad(f"{result.reason}: {result.words}", question)
                else:
                    self._breaker.good()
            finally:
                self._breaker.leave(question)
            self._take(number, result)
            self._done += 1
            if self._total is not None:
                self._around.progress(self._done, self._total)

    async def _asked(self, http: httpx.AsyncClient, question: Question) -> Result:
        """Ask one question until it is answered, would not be answered otherwise, or its time is over."""
        await asyncio.sleep(self._pace.turn())  # our own pace is no part of its time
        deadline = self._around.clock() + self._limits.deadline_seconds
        sent, wait, last = (
            0,
            0.0,
            UnusableError("rate_limited", "the server wants no request for longer than the deadline"),
        )
        for attempt in range(1, self._limits.attempts + 1):
            delay = max(wait, self._pace.turn() if sent else 0.0, self._pace.held)
            if delay >= deadline - self._around.clock():
                break
            await asyncio.sleep(delay)
            sent += 1
            try:
                async with asyncio.timeout(max(0.01, deadline - self._around.clock())):
                    content = await self._sent(http, question)
                return Result(read(content, question, self._vocabulary), requests=sent)
            except TimeoutError:
                last = UnusableError("deadline", f"no whole reply within {self._limits.deadline_seconds:g} s")
            except ServiceError as e:
                last = UnusableError("teacher_unavailable", str(self._to.hide(str(e))))
            except UnusableError as e:
                last = e
            if last.reason in _AS_OFTEN:
                break
            wait = self._limits.wait_seconds * 2 ** (attempt - 1)
        return Result(None, last.reason, str(last), sent)

    async def _sent(self, http: httpx.AsyncClient, question: Question) -> bytes:
        """Return the content of a good reply. UnusableError for another, TeacherError where all would be such."""
        most = _MOST_BYTES + _ENTRY_BYTES * len(question.ids) * (question.size + 1)
        data = body(self._client.spec.model, question)
        status, content, held = await exchange(http, self._to, "POST", "/v1/completions", data, most)
        self._pace.hold(held)
        if status != 200:
            outcome, told = http_replies.of_status(status), _told(status, content, self._to)
            if outcome == "fatal":
                why = http_replies.FATAL.get(status, http_replies.ELSEWHERE)
                name, model = self._client.name, self._client.spec.model
                raise TeacherError(
                    f"teacher {name}: its server answered {status}: {why}{told} (model {model!r}); check "
                    f"teachers.{name}.model, url and the variable that api_key names, and run again"
                )
            raise UnusableError(outcome, f"it answered {status}{told}")
        if len(content) > most:
            raise UnusableError("too_long", f"it sent more than {most} bytes")
        return content


def _longest_first(questions: Mapping[int, Question]) -> list[tuple[int, Question]]:
    """Return them so that rows of like length are under way together, and none of them is waited for alone at the end."""
    return sorted(questions.items(), key=lambda item: (-len(item[1].ids), item[0]))
