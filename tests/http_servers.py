"""HTTP servers of the tests' own."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpHandler(BaseHTTPRequestHandler):
    """Answers without a word in the output of the tests."""

    def do_GET(self) -> None:
        self.answer_get()

    def do_POST(self) -> None:
        self.answer_post()

    def answer_get(self) -> None:
        """Answer a GET."""
        raise AssertionError("nothing is to be got here, also not by following a redirect")

    def answer_post(self) -> None:
        """Answer a POST."""
        raise AssertionError("nothing is to be posted here")

    def received_headers(self) -> dict[str, str]:
        """Return the headers of the request by their names in small letters."""
        return {name.lower(): value for name, value in self.headers.items()}

    def received_json(self) -> Any:
        """Return the JSON of the request."""
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, status: int, headers: Mapping[str, str], body: Any) -> None:
        """Answer with bytes, or with anything else as JSON; a `content-length` may be among the headers."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class QuietHttpServer(ThreadingHTTPServer):
    """Says nothing of clients that did not wait."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextmanager
def serving_http(
    handler: type[HttpHandler], tls: ssl.SSLContext | None = None, kind: type[ThreadingHTTPServer] = ThreadingHTTPServer
) -> Iterator[str]:
    """Serve on a free port for the length of a block and yield the URL, which has the name of this machine for TLS."""
    server = kind(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}" if tls else f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
