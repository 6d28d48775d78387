"""Peers of every kind, and one way to ask them."""

from __future__ import annotations

import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.modules.federation.peer import Agent, CircuitBreaker, Peer, open_peer
from cstp_grpc.modules.federation.peer_transport import CallMetadata, PeerCallResult
from tests.certificates import Certificate
from tests.http_servers import HttpHandler, serving_http

SECONDS = 20.0
"""How long a peer may take that is expected to answer."""
SOON = 0.3
"""How long a peer may take that is expected not to."""
QUERY = contract_methods()["cstp.queryDecisions"]
REQUEST = cstp_pb2.QueryDecisionsRequest(query="x")
RESULT: dict[str, Any] = {"query": "x", "agent": "its own name"}
ANSWER = cstp_pb2.QueryDecisionsResponse(**RESULT)


@contextmanager
def peer_at(url: str, token: str | None = "secret-1", **wanted: Any) -> Iterator[Peer]:
    """Open a peer for the length of a block."""
    traits = {name: wanted.pop(name) for name in list(wanted) if name in Agent.__dataclass_fields__}
    defaults: dict[str, Any] = {"name": "peer", "timeout": SECONDS}
    agent = Agent(**(defaults | traits), target=url, token=token)
    peer = open_peer(agent, wanted.pop("breaker", CircuitBreaker(1000, 10.0)), **wanted)
    try:
        yield peer
    finally:
        peer.close()


def ask(peer: Peer, seconds: float = SECONDS, metadata: CallMetadata = ()) -> PeerCallResult:
    """Ask a peer and return its result."""
    results: queue.SimpleQueue[PeerCallResult] = queue.SimpleQueue()
    peer.ask(QUERY, REQUEST, seconds, metadata, results.put)
    return results.get(timeout=2 * SECONDS)


@contextmanager
def tcp_server(talk: Callable[[socket.socket, threading.Event], object]) -> Iterator[str]:
    """Run a server that does with each connection what `talk` does, and then closes it; yield its `host:port`.

    The event is set when the server is about to stop.
    """
    stopping = threading.Event()
    threads: list[threading.Thread] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def attend(connection: socket.socket) -> None:
        with connection:
            connection.settimeout(SECONDS)
            try:
                talk(connection, stopping)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=attend, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stopping.set()
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join(SECONDS)
        listening.close()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()


@contextmanager
def silent_server() -> Iterator[str]:
    """Run a server whose machine accepts connections, and that never answers; yield its `host:port`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def saying(content: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Return a handler that answers the same bytes to the first data, and then no more."""

    def talk(connection: socket.socket, stopping: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        # Closing before all has arrived that was sent would take the answer back.
        while connection.recv(65536):
            continue

    return talk


def http(body: bytes, headers: str = "content-type: application/json\r\n", status: str = "200 OK") -> bytes:
    """Return an HTTP response."""
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Pages:
    """What an HTTP server has: by path a status, headers and a body, which is JSON unless it is bytes."""

    found: dict[str, tuple[int, dict[str, str], Any]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def put(self, path: str, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> str:
        """Set a page and return its URL."""
        self.found[path] = (status, headers or {}, body)
        return self.url + path


@contextmanager
def pages(certificate: Certificate | None = None) -> Iterator[Pages]:
    """Run a server of pages, with TLS where it has a certificate."""
    state = Pages()

    class Handler(HttpHandler):
        def answer_get(self) -> None:
            state.asked.append((self.path, self.received_headers()))
            self.answer(*state.found.get(self.path, (404, {}, b"")))

    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
    with serving_http(Handler, context) as state.url:
        yield state
