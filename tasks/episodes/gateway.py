"""A loopback gateway in the form of the OpenAI API, by which agents of the user's own reach policy and world.

It reads and refuses in its own threads, and hands what is well-formed on as jobs: one thread, the one that waits for
jobs, talks to sampler and worlds. Every episode has a secret of its own; there is nothing to reach without one.
"""

import contextlib
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from specs import strict_json
from tasks.boundary import Failure, boundary
from tasks.episodes.agents import ToolLoopAgent
from tasks.episodes.asks import MODEL, Ask, Refused, chat_ask, decode_ask, encode_ask, ids_ask, tool_ask
from tasks.episodes.loopback import JSONHandler, LoopbackServer

MAX_BODY = 4 * 2**20
"""Bytes of the largest request."""
_READ_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class Job:
    """A request of an episode that waits for its answer."""

    episode: Any
    ask: Ask
    done: threading.Event = field(default_factory=threading.Event)
    status: int = 500
    answer: dict[str, Any] = field(default_factory=dict[str, Any])

    def reply(self, answer: dict[str, Any], status: int = 200) -> None:
        """Answer it."""
        self.status, self.answer = status, answer
        self.done.set()

    def refuse(self, why: Refused) -> None:
        """Say why it is not carried out."""
        self.reply(error_body(str(why), why.code), why.status)


def error_body(text: str, code: str) -> dict[str, Any]:
    """Return an error in the form of the OpenAI API."""
    return {"error": {"message": text, "type": "invalid_request_error", "code": code, "param": None}}


class Gateway:
    """Serves the episodes that are admitted until `stop`; use it as a context manager."""

    def __init__(self, agent: ToolLoopAgent, vocabulary: int, temperature: float) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._agent, self._vocabulary, self._temperature = agent, vocabulary, temperature
        self._episodes: dict[str, tuple[Any, float]] = {}
        self._unheard = False
        """Requests are not taken up for a while."""
        gateway = self

        class Handler(_Handler):
            serving = gateway

        self._http = LoopbackServer(0, Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="gateway", daemon=True)

    @property
    def url(self) -> str:
        """Return the base URL that an OpenAI client takes."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def admit(self, episode: Any, deadline: float) -> str:
        """Return the secret by which an episode's requests are known until it is dismissed."""
        secret = f"episode-{secrets.token_hex(16)}"
        self._episodes[secret] = (episode, deadline)
        return secret

    def dismiss(self, secret: str) -> None:
        """Take no further requests of an episode."""
        self._episodes.pop(secret, None)

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Refuse nobody for want of time while requests are not taken up, and give the time back."""
        began, self._unheard = time.monotonic(), True
        try:
            yield
        finally:
            more = time.monotonic() - began
            self._episodes = {secret: (episode, at + more) for secret, (episode, at) in self._episodes.items()}
            self._unheard = False

    def handle(self, path: str, headers: Mapping[str, str], body: bytes | None) -> tuple[int, dict[str, Any]]:
        """Return status and answer to a request; a body of None is a GET."""
        episode, deadline = self._known(headers)
        if body is None:
            return self._told(path, episode)
        job = Job(episode, self._read(path, body))
        self.jobs.put(job)
        while not job.done.wait(max(0.0, deadline - time.monotonic()) + 1.0):
            before, (_, deadline) = deadline, self._known(headers)
            if deadline <= before and not self._unheard:
                raise Refused("the episode's time is over", 408, "deadline")
        return job.status, job.answer

    def _known(self, headers: Mapping[str, str]) -> tuple[Any, float]:
        kind, _, secret = (headers.get("Authorization") or "").partition(" ")
        found = self._episodes.get(secret.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise Refused(
                "unknown key: send `Authorization: Bearer $OPENAI_API_KEY` of this episode", 401, "invalid_api_key"
            )
        return found

    def _told(self, path: str, episode: Any) -> tuple[int, dict[str, Any]]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "tutelage"}]}
        if path == "/v1/episode":
            return 200, episode.told()
        raise Refused(f"no {path} to GET; there are /v1/models and /v1/episode", 404, "not_found")

    def _read(self, path: str, body: bytes) -> Ask:
        read = json.loads if path == "/v1/tools/call" else _strict  # a policy's own mistakes are told to it
        try:
            data = read(body)
        except (ValueError, RecursionError) as e:
            raise Refused(f"the body is no JSON ({str(e)[:200]})") from None
        if not isinstance(data, dict):
            raise Refused("the body is no JSON object")
        readers: dict[str, Callable[[], Ask]] = {
            "/v1/chat/completions": lambda: chat_ask(data, self._agent, self._temperature),
            "/v1/completions": lambda: ids_ask(data, self._vocabulary, self._temperature),
            "/v1/tools/call": lambda: tool_ask(data),
            "/v1/tokenize": lambda: encode_ask(data, self._agent),
            "/v1/detokenize": lambda: decode_ask(data, self._vocabulary),
        }
        if path not in readers:
            raise Refused(f"no {path} to POST; there are {', '.join(readers)}", 404, "not_found")
        return readers[path]()

    def stop(self) -> None:
        """End; requests that still wait are told so."""
        self._episodes.clear()
        while not self.jobs.empty():
            self.jobs.get_nowait().refuse(Refused("the run was stopped", 503, "stopped"))
        self._http.shutdown()
        self._http.close_connections()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _strict(body: bytes) -> Any:
    return strict_json.parse(body.decode())


class _Handler(JSONHandler):
    timeout = _READ_SECONDS
    serving: Gateway

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            text = f"expected a body with Content-Length, of at most {MAX_BODY} bytes"
            self.reply(413 if length.isdigit() else 411, error_body(text, "body"))
            return
        self._answer(self.rfile.read(int(length)))

    def _answer(self, body: bytes | None) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        found = boundary("gateway", lambda: self._handled(path, body))
        if isinstance(found, Failure):
            found = (500, error_body(str(found), "gateway"))
        self.reply(*found)

    def _handled(self, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        try:
            return self.serving.handle(path, self.headers, body)  # type: ignore[arg-type]
        except Refused as e:
            return e.status, error_body(str(e), e.code)
