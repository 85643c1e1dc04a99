"""A real HTTP server that behaves as closed APIs do, well or badly; it counts requests by what was asked."""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Act = Callable[["Handler", Body], None]


@dataclass
class Seen:
    """What reached the server: it is the witness of what was paid for."""

    bodies: list[Body] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    """Whole replies, not streamed ones."""
    times: list[float] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)
    """Requests by messages."""
    secrets: set[str] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Server(ThreadingHTTPServer):
    """Acts by turns: the n-th request gets the n-th act, further ones the last."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, acts: list[Act], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.acts = acts
        self.seen = Seen()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error here."""

    def vanish(self) -> None:
        """Have nobody listen any more; connections that are open stay so."""
        self.socket.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    @property
    def api(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = self.api.seen
        with seen.lock:
            number = len(seen.bodies)
            seen.bodies.append(body)
            seen.times.append(time.monotonic())
            seen.keys[hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()] += 1
            seen.secrets.add(self.headers.get("Authorization", ""))
            seen.at_once += 1
            seen.most_at_once = max(seen.most_at_once, seen.at_once)
        try:
            if self.path != "/v1/chat/completions":
                return self.send(404, b"{}")
            return self.api.acts[min(number, len(self.api.acts) - 1)](self, body)
        finally:
            with seen.lock:
                seen.at_once -= 1

    def send(self, status: int, data: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with self.api.seen.lock:
            self.api.seen.replies.append(data)
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(*acts: Act) -> Iterator[Server]:
    server = Server(list(acts))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text: str | None, finish: str | None = "stop", **message: Any) -> Body:
    return {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20},
    }


def says(text: str | None, finish: str | None = "stop", **message: Any) -> Act:
    """Answer well formed, whatever the answer is."""
    return lambda h, _: h.send(200, json.dumps(completion(text, finish, **message)).encode())


def answers(think: Callable[[Body], str]) -> Act:
    """Answer what `think` makes of the request."""
    return lambda h, body: h.send(200, json.dumps(completion(think(body))).encode())


def raw(data: bytes, kind: str = "application/json") -> Act:
    return lambda h, _: h.send(200, data, kind)


def status(code: int, message: str = "no", **headers: str) -> Act:
    return lambda h, _: h.send(code, json.dumps({"error": {"message": message}}).encode(), **headers)


def echo_key(code: int) -> Act:
    """Refuse, and repeat the key in the message, as some servers do."""
    return lambda h, _: status(code, f"Incorrect API key: {h.headers.get('Authorization')}")(h, _)


def cut(data: bytes, at: int) -> Act:
    """Promise the whole body, send a part, hang up."""

    def act(h: Handler, _: Body) -> None:
        h.send_response(200)
        h.send_header("Content-Type", "application/json")
        h.send_header("Content-Length", str(len(data)))
        h.end_headers()
        h.wfile.write(data[:at])
        h.wfile.flush()
        h.close_connection = True

    return act


def hang(seconds: float) -> Act:
    """Accept and never answer."""

    def act(h: Handler, _: Body) -> None:
        time.sleep(seconds)
        h.close_connection = True

    return act


def trickle(size: int, gap: float) -> Act:
    """Send one byte after the other, slowly."""

    def act(h: Handler, _: Body) -> None:
        h.send_response(200)
        h.send_header("Content-Length", str(size))
        h.end_headers()
        try:
            for _i in range(size):
                h.wfile.write(b" ")
                h.wfile.flush()
                time.sleep(gap)
        except OSError:
            h.close_connection = True

    return act


def streams(parts: list[str], finish: str | None = "stop", *, done: bool = True) -> Act:
    """Stream an answer; without `done` it ends before its end marker."""

    def act(h: Handler, _: Body) -> None:
        h.send_response(200)
        h.send_header("Content-Type", "text/event-stream")
        h.send_header("Connection", "close")
        h.end_headers()
        for part in parts:
            _event(h, {"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]})
        if done:
            _event(h, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            _event(h, {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20}})
            h.wfile.write(b"data: [DONE]\n\n")
        h.close_connection = True

    return act


def _event(h: Handler, data: Body) -> None:
    h.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
    h.wfile.flush()


def slow(act: Act, seconds: float) -> Act:
    def later(h: Handler, body: Body) -> None:
        time.sleep(seconds)
        act(h, body)

    return later
