"""What an HTTP server of ours on the loopback consists of."""

import contextlib
import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LoopbackServer(ThreadingHTTPServer):
    """A threading server that knows its connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[Any] = set()
        super().__init__(("127.0.0.1", port), handler)

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


class JSONHandler(BaseHTTPRequestHandler):
    """Answers in JSON and keeps connections open."""

    protocol_version = "HTTP/1.1"

    def reply(self, status: int, data: dict[str, Any]) -> None:
        """Send an answer."""
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: who serves keeps a record of its own."""
