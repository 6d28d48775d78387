"""A receiver of notifications on loopback."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http_servers import HttpHandler, serving_http
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

    class Handler(HttpHandler):
        def answer_post(self) -> None:
            status = receiver.take(Received(self.path, self.received_headers(), self.received_json()))
            receiver.may_answer.wait(SECONDS)
            self.answer(status, receiver.headers, b"")

    with serving_http(Handler, tls) as receiver.url:
        try:
            yield receiver
        finally:
            receiver.may_answer.set()
