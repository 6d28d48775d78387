"""HTTP with hosts that are not trusted: one request and its answer, bounded in time and size."""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import SplitResult

from cstp_grpc.client.federation.results import MAX_ANSWER_BYTES
from cstp_grpc.client.jsonrpc import HttpAnswer, open_connection

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

CHUNK: Final = 65_536
LEAST_SECONDS: Final = 0.001
"""Sockets take 0 for not waiting at all, and less for a mistake."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Dial = Callable[[tuple[str, int], float], socket.socket]
"""Connects to a host and port within some seconds. Raises OSError."""


class TooLarge(HTTPException):
    """An answer is larger than anything that is read."""


def fetch(
    verb: str,
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes | None,
    seconds: float,
    tls: ssl.SSLContext | None,
    clock: Callable[[], float] = time.monotonic,
) -> HttpAnswer:
    """Send one request and return its whole answer; redirects are not followed and no proxies used.

    Raises TimeoutError after `seconds`, however the answer trickles, other OSErrors where nobody answers, and
    HTTPException where what is answered is not HTTP or too large. Resolving the host's name takes what it takes, and so
    long may each of its addresses take to accept the connection.
    """
    if seconds <= 0:
        raise TimeoutError
    deadline = clock() + seconds
    connection = open_connection(url, seconds, tls)
    try:
        connection.sock = cast(socket.socket, connected(url, deadline, clock, tls))
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request(verb, path, body, dict(headers))
        with connection.getresponse() as response:
            content = read_body(response)
            return HttpAnswer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)
    finally:
        connection.close()


def read_body(response: HTTPResponse) -> bytes:
    """Return the body of a response. Raises TooLarge."""
    received = bytearray()
    while chunk := response.read1(CHUNK):
        received += chunk
        if len(received) > MAX_ANSWER_BYTES:
            raise TooLarge(f"more than {MAX_ANSWER_BYTES} bytes")
    return bytes(received)


def connected(
    url: SplitResult,
    deadline: float,
    clock: Callable[[], float],
    tls: ssl.SSLContext | None,
    dial: Dial = socket.create_connection,
) -> TimedSocket:
    """Return a connection to the host of a URL. Raises OSError."""
    host = url.hostname or ""
    left = max(deadline - clock(), LEAST_SECONDS)
    try:
        raw = dial((host, url.port or DEFAULT_PORTS[url.scheme]), left)
    except UnicodeError as error:
        raise OSError(f"{host} is no name of a host") from error
    try:
        # A request is sent in two pieces, the second of which would wait for the first to be acknowledged.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        timed = TimedSocket(raw, deadline, clock)
        if tls is None or url.scheme != "https":
            return timed
        timed.wait_no_longer()
        return TimedSocket(tls.wrap_socket(raw, server_hostname=host), deadline, clock)
    except BaseException:
        raw.close()
        raise


class TimedSocket:
    """As much of a socket as HTTP needs, all of whose reads and writes end at one deadline."""

    def __init__(self, raw: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._raw = raw
        self._deadline = deadline
        self._clock = clock

    def sendall(self, data: ReadableBuffer) -> None:
        """Send bytes. Raises TimeoutError after the deadline."""
        self.wait_no_longer()
        self._raw.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return what is received, as a file."""
        return io.BufferedReader(TimedReader(self, self._raw.makefile("rb", buffering=0)), CHUNK)

    def close(self) -> None:
        """Close the socket once its files are closed."""
        self._raw.close()

    def wait_no_longer(self) -> None:
        """Let the next operation end at the deadline. Raises TimeoutError where that is over."""
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._raw.settimeout(left)


class TimedReader(io.RawIOBase):
    """What a TimedSocket receives. Reading raises TimeoutError after the deadline."""

    def __init__(self, timed: TimedSocket, received: socket.SocketIO) -> None:
        self._timed = timed
        self._received = received

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Fill a buffer with what is there, at least one byte unless it is the end; return how many."""
        self._timed.wait_no_longer()
        return self._received.readinto(buffer)

    def close(self) -> None:
        """Close the file."""
        self._received.close()
        super().close()
