"""A receiver of notifications on loopback."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import SECONDS


@dataclass(frozen=True)
class Received:
    """A notification as it arrived."""

    path: str
    headers: Mapping[str, str]
    content: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        params: dict[str, Any] = self.content["params"]
        return params


@dataclass
class Receiver:
    """Keeps what it gets, and answers with statuses that it is told, then with the last of them for ever.

    `headers` go with every answer. It answers only while `may_answer` is set.
    """

    url: str = ""
    received: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=lambda: [204])
    headers: dict[str, str] = field(default_factory=dict)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def take(self, received: Received) -> int:
        self.received.append(received)
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    @property
    def methods(self) -> list[str]:
        return [each.content["method"] for each in self.received]


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    receiver = Receiver()
    receiver.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.take(Received(self.path, headers, json.loads(body)))
            receiver.may_answer.wait(SECONDS)
            self.send_response(status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            raise AssertionError("nobody is to follow a redirect")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    host = "localhost" if tls else "127.0.0.1"
    receiver.url = f"{'https' if tls else 'http'}://{host}:{server.server_port}"
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
