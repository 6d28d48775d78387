"""A TCP proxy on loopback that stops forwarding, is slow, cuts connections or sends garbage."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial

CHUNK = 65_536
SLOW_SECONDS = 0.01
"""How long the proxy keeps each chunk while it is slow."""


class Network(Enum):
    """What the proxy does with what it gets."""

    FORWARDS = "forwards"
    SILENT = "silent"
    """Takes connections and everything that is sent, and forwards nothing, as behind a firewall that drops packets."""
    SLOW = "slow"
    CUT = "cut"
    """Ends every connection, old and new."""
    GARBAGE = "garbage"
    """Answers with random bytes in the place of those of the server."""


class FaultyProxy:
    """Forwards connections to a server, whose address may change, as long as it is told to."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        """Start listening; `connect` opens a connection to the server."""
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._forwards = threading.Event()
        self._forwards.set()
        self.answered_chunks = 0
        """How much has come from the server, in chunks; it grows while the server is used."""
        self._network = Network.FORWARDS
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @contextmanager
    def being(self, network: Network) -> Iterator[None]:
        """Be faulty for the length of a block."""
        self._network = network
        if network is Network.SILENT:
            self._forwards.clear()
        if network is Network.CUT:
            self._cut_all()
        try:
            yield
        finally:
            self._network = Network.FORWARDS
            self._forwards.set()

    def close(self) -> None:
        """End all connections and wait for the threads."""
        self._network = Network.CUT
        self._forwards.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut_all()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _cut_all(self) -> None:
        with self._lock:
            for each in self._sockets:
                # The thread that reads it sees the end, and closes it.
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._network is Network.CUT:
                near.close()
                continue
            try:
                far = self._connect()
            except OSError:
                near.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
            ended = [near, far]
            self._start(partial(self._pump, near, far, ended, answers=False))
            self._start(partial(self._pump, far, near, ended, answers=True))

    def _pump(
        self, source: socket.socket, sink: socket.socket, open_ends: list[socket.socket], *, answers: bool
    ) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                # What arrives while the network is silent is kept, as TCP would send it again.
                self._forwards.wait()
                if self._network is Network.SLOW:
                    threading.Event().wait(SLOW_SECONDS)
                if self._network is Network.GARBAGE and answers:
                    chunk = random.randbytes(len(chunk))
                self.answered_chunks += answers
                sink.sendall(chunk)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            # Closed by whichever direction ends last: a descriptor that is closed while the other reads it is reused.
            open_ends.remove(source)
            if not open_ends:
                self._sockets -= {source, sink}
                source.close()
                sink.close()


@contextmanager
def proxy_to(connect: Callable[[], socket.socket]) -> Iterator[FaultyProxy]:
    """Run a proxy for the length of a block."""
    proxy = FaultyProxy(connect)
    try:
        yield proxy
    finally:
        proxy.close()
