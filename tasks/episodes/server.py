"""A sampler over HTTP on the loopback: token ids in, token ids and logprobs out.

`GET /health` says what is served, `POST /generate` answers a batch. One batch at a time; sessions of different
clients never meet. Not for other machines: there is no authentication, so it listens on the loopback only.
"""

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from specs.errors import ProgramError, TutelageError
from tasks.boundary import Failure, boundary
from tasks.episodes.local import LocalSampler
from tasks.episodes.wire import MAX_BODY, completion_to, request_from


class SamplerServer:
    """Serves a sampler from a thread until `stop`; use it as a context manager."""

    def __init__(self, sampler: LocalSampler, host: str = "127.0.0.1", port: int = 0) -> None:
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise ProgramError(f"sampler server: found host {host!r}, expected 127.0.0.1: it has no authentication")
        self.sampler = sampler
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, int], int] = {}
        self._next = 0
        owner = self

        class Handler(_Handler):
            serving = owner

        self._http = LoopbackServer((host, port), Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.02,), name="sampler-server", daemon=True
        )

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; connections that are kept open are closed."""
        self._http.shutdown()
        self._http.close_connections()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def health(self) -> dict[str, Any]:
        """Return what is served."""
        sampler = self.sampler
        return {
            "status": "ok",
            "policy_version": sampler.policy_version,
            "tokenizer_digest": sampler.tokenizer_digest,
            "max_length": sampler.max_length,
        }

    def generate(self, body: bytes) -> dict[str, Any]:
        """Return the completions that a request body asks for."""
        data = json.loads(body)
        client = str(data["client"])
        requests = [request_from(r) for r in data["requests"]]
        with self._lock:
            kept: dict[tuple[str, int], int] = {}
            for request in requests:
                key = (client, request.session)
                if key not in self._sessions:
                    self._sessions[key] = self._next
                    self._next += 1
                kept[key] = request.session = self._sessions[key]
            self._sessions = kept
            return {"completions": [completion_to(c) for c in self.sampler.generate(requests)]}


class LoopbackServer(ThreadingHTTPServer):
    """A threading server that knows its connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[Any] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection and answer it in a thread."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: what can be raised here is that a client has gone."""

    def close_connections(self) -> None:
        """Close what is still open."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    serving: SamplerServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(200, self.serving.health())
        else:
            self._reply(404, {"error": f"no {self.path}; there are /health and /generate"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/generate" or not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            self._reply(400, {"error": f"expected POST /generate with a body of at most {MAX_BODY} bytes"})
            return
        body = self.rfile.read(int(length))
        answer = boundary("generate", lambda: self.serving.generate(body))
        if isinstance(answer, Failure):
            known = {c.__name__ for c in TutelageError.__subclasses__()} | {"JSONDecodeError", "KeyError", "TypeError"}
            self._reply(400 if answer.kind in known else 500, {"error": answer.message, "kind": answer.kind})
        else:
            self._reply(200, answer)

    def _reply(self, status: int, data: dict[str, Any]) -> None:
        body = json.dumps(data, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent; callers keep their own logs."""
