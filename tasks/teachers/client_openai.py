"""A teacher behind a chat API: one layer of retries, one deadline per question, every request in the ledger."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from specs.errors import BudgetError, Interrupted, TeacherError
from specs.teachers import OpenAITeacher
from tasks.teachers import http_replies
from tasks.teachers.asks import Ask
from tasks.teachers.breaker import Breaker
from tasks.teachers.budget import Caps, InFlightError, dollars, prompt_tokens
from tasks.teachers.common import LIMITS, Common
from tasks.teachers.http_replies import Read
from tasks.teachers.ledger import OK, CallLedger, Returned
from tasks.teachers.limits import Pace
from tasks.teachers.reaching import Reach, reach, trust
from tasks.teachers.replies import Reply

GRACE = 5.0
"""Seconds that requests in flight get to end when the node must stop."""
_LOOK = 0.1
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError)
"""After these nothing was sent, so nothing is paid."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the teacher is asked from. `environ` holds what references name; it is looked at when a request is sent."""

    ledger: CallLedger
    node: str
    environ: Mapping[str, str] = field(repr=False)
    caps: Caps = field(default_factory=Caps)
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int, int, float], None] = lambda done, total, usd: None
    clock: Callable[[], float] = time.monotonic


class OpenAIClient:
    """Asks questions, a bounded number at once."""

    def __init__(self, name: str, spec: OpenAITeacher, setting: Setting) -> None:
        self.name = name
        self.spec = spec
        self._setting = setting

    @property
    def revision(self) -> str:
        """Return who answers."""
        return f"openai {self.spec.model}{f'@{self.spec.revision}' if self.spec.revision else ''}"

    def key(self, messages: Sequence[Mapping[str, str]], sample: int, again: int = 0) -> str:
        """Return the digest of everything that can change the answer."""
        spec = self.spec
        told: Any = [
            "chat", spec.version, spec.model, spec.revision, list(messages), spec.temperature, spec.top_p,
            spec.max_tokens, spec.max_tokens_limit, spec.json_mode, sample, *([again] if again else []),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(told, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def ask(self, asks: Sequence[Ask], prompt: str, *, dispensable: bool = False) -> list[Reply]:
        """Return one reply per question; what the ledger knows is not asked again, and equal questions are one call."""
        said = [ask.messages(prompt) for ask in asks]
        keys = [self.key(m, a.sample, a.again) for m, a in zip(said, asks, strict=True)]
        replies: dict[str, Reply] = {}
        open_calls: dict[str, list[dict[str, str]]] = {}
        for key, messages in zip(keys, said, strict=True):
            known = self._setting.ledger.answer(key)
            if known is not None:
                replies[key] = self._reply(key, known, 0)
            else:
                open_calls[key] = messages
        if open_calls:
            asked = _Round(self, open_calls, len(replies), self._setting)
            with asked.common.enter():
                replies |= asyncio.run(asked.run(dispensable=dispensable))
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        return [replies[k] if first[k] == i else replace(replies[k], usd=0.0, requests=0) for i, k in enumerate(keys)]

    def _reply(self, key: str, how: Returned, requests: int) -> Reply:
        usd = self._setting.ledger.attempts(key)[1]
        text = how.text if how.outcome == OK else None
        failure = None if how.outcome == OK else f"{how.outcome}: {how.detail}" if how.detail else how.outcome
        return Reply(text, failure, [key], usd, requests, how.tokens_in + how.tokens_out)


class _Round:
    """The questions of one call of `ask`, under one event loop."""

    def __init__(
        self, client: OpenAIClient, calls: Mapping[str, list[dict[str, str]]], known: int, setting: Setting
    ) -> None:
        self.client, self.spec, self.calls, self.setting = client, client.spec, calls, setting
        self.common = Common(setting.ledger.path.parent / LIMITS / client.name, self.spec.limits, setting.clock)
        self.pace = Pace(self.common)
        self.breaker = Breaker(client.name, self.common)
        self.known = known
        self.replies: dict[str, Reply] = {}
        self.ended: BaseException | None = None
        self.first_done = asyncio.Event()
        self.http: httpx.AsyncClient | None = None
        self.landed = asyncio.Event()
        self.line = asyncio.Lock()
        """Of those that wait for money."""

    async def run(self, *, dispensable: bool) -> dict[str, Reply]:
        """Ask them all. What ends the round as a whole is raised when nothing is in flight any more.

        As `dispensable` a teacher that cannot be used is no end of the round: it is why questions have no answer.
        """
        limits = httpx.Limits(max_connections=self.spec.limits.in_flight)
        timeout = httpx.Timeout(self.spec.limits.deadline_seconds)
        async with httpx.AsyncClient(
            limits=limits, timeout=timeout, follow_redirects=False, trust_env=False, verify=trust()
        ) as self.http:
            pending = {asyncio.create_task(self._one(i, k)) for i, k in enumerate(self.calls)}
            while pending:
                done, pending = await asyncio.wait(pending, timeout=_LOOK, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                if len(self.replies) < len(self.calls) and self.setting.stop():
                    self.ended = self.ended or Interrupted(
                        f"teacher {self.client.name}: asked to stop; what was answered is kept"
                    )
                    pending = await self._give_up(pending)
        if self.ended is None:
            return self.replies
        if not dispensable or not isinstance(self.ended, TeacherError) or isinstance(self.ended, BudgetError):
            raise self.ended
        return {key: self.replies.get(key) or self._left_open(key, self.ended) for key in self.calls}

    def _left_open(self, key: str, why: TeacherError) -> Reply:
        return Reply(None, f"teacher_failed: {why}", [key], self.setting.ledger.attempts(key)[1])

    async def _give_up(self, pending: "set[asyncio.Task[None]]") -> "set[asyncio.Task[None]]":
        if pending:
            _, late = await asyncio.wait(pending, timeout=GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return set()

    async def _one(self, number: int, key: str) -> None:
        if number:  # the first goes alone: a wrong key or model is found out by one request
            await self.first_done.wait()
        async with self.pace.place(lambda: self.ended is not None) as free:
            try:
                if free and self.ended is None and await self._may_ask(key):
                    known = self.setting.ledger.answer(key)  # another node may have asked it meanwhile
                    reply = await self._asked(key) if known is None else self.client._reply(key, known, 0)
                    if reply is not None:
                        self._note(key, reply)
            except TeacherError as e:
                self.ended = self.ended or e
            finally:
                self.breaker.leave(key)
                self.first_done.set()

    def _note(self, key: str, reply: Reply) -> None:
        self.replies[key] = reply
        done, total = self.known + len(self.replies), self.known + len(self.calls)
        self.setting.progress(done, total, self.setting.ledger.spent(self.client.name).usd)

    async def _may_ask(self, key: str) -> bool:
        """Wait while the teacher is left alone; return False where the round has ended meanwhile."""
        while self.breaker.open and not self.breaker.trial(key):
            if self.ended is not None or self.setting.stop():
                return False
            await asyncio.sleep(min(_LOOK, max(0.01, self.breaker.pause)))
        return self.ended is None

    async def _asked(self, key: str) -> Reply | None:
        """Ask one question until it is answered, may not be asked again, or its time is over.

        None where the round ended before it was asked.
        """
        await asyncio.sleep(self.pace.turn())  # our own pace is no part of its time, and nor is a wait for money
        to = reach(self.client.name, self.spec, self.setting.environ)
        deadline = self.setting.clock() + self.spec.limits.deadline_seconds
        limits, most = self.spec.limits, self.spec.max_tokens_limit
        budget, sent, faults, wait, how = self.spec.max_tokens, 0, 0, 0.0, Returned("rate_limited")
        while await self._ready(wait, deadline):
            try:
                call = self._begin(key, sent + 1, budget)
            except InFlightError:
                async with self.line:  # what comes back may be enough for one
                    deadline, wait = deadline + await self._money(key, budget), 0.0
                if (known := self.setting.ledger.answer(key)) is not None:  # another node has asked it meanwhile
                    return self.client._reply(key, known, sent)
                continue
            how, sent = await self._send(key, call, to, budget, deadline), sent + 1
            self.first_done.set()
            if how.outcome in http_replies.LONGER and budget < most:  # no fault: it needs more room
                budget, wait = min(2 * budget, most), 0.0
            elif how.outcome in http_replies.RETRIED and faults + 1 < limits.attempts:
                faults, wait = faults + 1, limits.wait_seconds * 2**faults
            else:
                break
            wait = max(wait, self.pace.turn())
        if self.ended is not None and not sent:
            return None
        self._judge(key, how)
        return self.client._reply(key, how, sent)

    def _begin(self, key: str, attempt: int, budget: int) -> str:
        """Reserve the dollars of a request and note it. BudgetError or InFlightError at a cap."""
        setting, most = self.setting, self._most(key, budget)
        return setting.ledger.begin(key, attempt, self.client.name, setting.node, most, setting.caps)

    async def _money(self, key: str, budget: int) -> float:
        """Wait until requests in flight, of this node or another, have left enough for one more; return the seconds.

        BudgetError where none is left that may.
        """
        began, fits = self.setting.clock(), False
        while not fits and self.ended is None:
            self.landed.clear()
            with contextlib.suppress(TimeoutError):  # only this node's are told of
                await asyncio.wait_for(self.landed.wait(), _LOOK)
            with contextlib.suppress(InFlightError):
                self.setting.ledger.check(self.client.name, self._most(key, budget), self.setting.caps)
                fits = True
        if self.ended is None:
            await asyncio.sleep(self.pace.turn())
        return self.setting.clock() - began

    def _most(self, key: str, budget: int) -> float:
        """Return the dollars that a request may cost."""
        return dollars(self.spec.price, prompt_tokens(self.calls[key]), budget)

    async def _ready(self, delay: float, deadline: float) -> bool:
        """Wait so long, and as long as the server wants; False where that is too long or the round has ended."""
        while (delay := max(delay, self.pace.held)) > 0:
            if delay >= deadline - self.setting.clock():
                return False
            await asyncio.sleep(delay)
            delay = 0.0
        return self.ended is None

    def _judge(self, key: str, how: Returned) -> None:
        if how.outcome in http_replies.ABSENT:
            self.breaker.bad(how.outcome, key)
        else:
            self.breaker.good()

    async def _send(self, key: str, call: str, to: Reach, budget: int, deadline: float) -> Returned:
        """Send one request, which was noted before; it is noted again when it has ended."""
        tokens, usd = prompt_tokens(self.calls[key]), self.setting.ledger.reserved(call)
        guess = Returned("deadline", tokens_in=tokens, tokens_out=budget, usd=usd, counted=False)
        try:
            how = await self._ended(key, call, to, guess, deadline)
        finally:
            self.landed.set()
        if how.outcome == "fatal":
            raise TeacherError(self._fatal(how.status or 0, how.detail))
        return how

    async def _ended(self, key: str, call: str, to: Reach, guess: Returned, deadline: float) -> Returned:
        """Return how a request ended, which is noted; `guess` is the most that it may have come to."""
        began = self.setting.clock()
        how = replace(guess, outcome="stopped", tokens_in=0, tokens_out=0)
        try:
            async with asyncio.timeout(max(0.01, deadline - began)):
                status, read = await self._exchange(to, self.calls[key], guess.tokens_out)
            how = replace(self._priced(read, guess, free=status != 200), status=status)
        except TimeoutError:
            how = guess
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
            how = Returned("bad_address")
            raise TeacherError(
                f"teacher {self.client.name}: base_url is no address of http:// or https:// ({type(e).__name__}); "
                f"mend teachers.{self.client.name}.base_url, or the variable that it names"
            ) from None
        except httpx.HTTPError as e:
            how = self._priced(Read(_broken(e)), guess, free=isinstance(e, _UNSENT))
        finally:  # also where it is cancelled: others wait for the end of what is noted
            how = replace(how, seconds=round(self.setting.clock() - began, 3))
            self.setting.ledger.end(key, call, how)
        return how

    async def _exchange(self, to: Reach, messages: Sequence[Mapping[str, str]], budget: int) -> tuple[int, Read]:
        assert self.http is not None, "a round is running"
        address, body = f"{to.address}/chat/completions", self._body(messages, budget)
        async with self.http.stream("POST", address, json=body, headers=to.headers) as response:
            good = response.status_code == 200
            if not good:
                told = response.headers
                self.pace.hold(http_replies.retry_after(told.get("Retry-After"), told.get("Date")))
            data = bytearray()
            async for part in response.aiter_raw():
                data += part
                if http_replies.enough(data, good=good):
                    break
        status, plain = (
            response.status_code,
            http_replies.unpacked(bytes(data), response.headers.get("Content-Encoding", "")),
        )
        if not good:
            return status, http_replies.refused(status, plain[: http_replies.MOST_ERROR], to.hide)
        if max(len(data), len(plain)) > http_replies.MOST_BYTES:
            return status, Read("too_long")
        streamed = self.spec.stream and "event-stream" in response.headers.get("Content-Type", "")
        read = (http_replies.read_stream if streamed else http_replies.read_body)(plain)
        return status, replace(read, text=to.hide(read.text, answer=True))

    def _body(self, messages: Sequence[Mapping[str, str]], budget: int) -> dict[str, Any]:
        spec = self.spec
        body: dict[str, Any] = {"model": spec.model, "messages": list(messages), spec.limit_field: budget}
        if spec.temperature is not None:
            body["temperature"] = spec.temperature
        if spec.top_p < 1.0:
            body["top_p"] = spec.top_p
        if spec.json_mode:
            body["response_format"] = {"type": "json_object"}
        if spec.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def _priced(self, read: Read, guess: Returned, *, free: bool) -> Returned:
        """Return the end of a request with its cost: the server's count, nothing for a refusal, else what may be."""
        text = read.text if read.outcome == OK else None
        how = replace(guess, outcome=read.outcome, text=text, finish=read.finish, detail=read.detail)
        if read.tokens_in is not None and read.tokens_out is not None:
            usd = dollars(self.spec.price, read.tokens_in, read.tokens_out)
            return replace(how, tokens_in=read.tokens_in, tokens_out=read.tokens_out, usd=usd, counted=True)
        return replace(how, tokens_in=0, tokens_out=0, usd=0.0, counted=True) if free else how

    def _fatal(self, status: int, detail: str | None) -> str:
        why = http_replies.FATAL.get(status, http_replies.ELSEWHERE) + (f": {detail}" if detail else "")
        name = self.client.name
        return (
            f"teacher {name}: the server answered {status}: {why} (model {self.spec.model!r}); check "
            f"teachers.{name}.model, base_url and the variable that api_key names, and run again"
        )


def _broken(error: httpx.HTTPError) -> str:
    """Return what a broken connection is: a reply that was cut, or none."""
    return "cut" if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) else "teacher_unavailable"
