"""A server that answers as Prefect does, in a tenth of a second: `python -m tests.flows.toy_server PORT`."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Health(BaseHTTPRequestHandler):
    """Says that it is well."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    if sys.argv[1] == "fail":
        sys.exit("no such database")
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
