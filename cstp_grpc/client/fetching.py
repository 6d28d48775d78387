"""One HTTP request and its answer, bounded in time and size whatever the host does."""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import SplitResult

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

CHUNK: Final = 65_536
LEAST_SECONDS: Final = 0.001
"""Sockets take 0 for not waiting at all, and less for a mistake."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Dial = Callable[[tuple[str, int], float], socket.socket]
"""Connects to a host and port within some seconds. Raises OSError."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP response; `headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TooLarge(HTTPException):
    """An answer is larger than what is read."""


def fetch(
    verb: str,
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes | None,
    seconds: float,
    tls: ssl.SSLContext,
    max_bytes: int,
    clock: Callable[[], float] = time.monotonic,
) -> HttpAnswer:
    """Send one request and return its whole answer; redirects are not followed and no proxies used.

    Raises TimeoutError after `seconds`, however the answer trickles, other OSErrors where nobody answers, TooLarge, and
    HTTPException where what is answered is not HTTP. Resolving the host's name takes what it takes, and so long may
    each of its addresses take to accept the connection.
    """
    with opened(url, seconds, tls, clock) as connection:
        connection.request(verb, resource_of(url), body, dict(headers))
        with connection.getresponse() as response:
            content = read_body(response, max_bytes)
            return HttpAnswer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)


def read_body(response: HTTPResponse, max_bytes: int) -> bytes:
    """Return the body of a response. Raises TooLarge."""
    received = bytearray()
    while chunk := response.read1(CHUNK):
        received += chunk
        if len(received) > max_bytes:
            raise TooLarge(f"more than {max_bytes} bytes")
    return bytes(received)


def resource_of(url: SplitResult) -> str:
    """Return what a request names of its URL."""
    return (url.path or "/") + (f"?{url.query}" if url.query else "")


@contextmanager
def opened(
    url: SplitResult,
    seconds: float,
    tls: ssl.SSLContext,
    clock: Callable[[], float],
    dial: Dial = socket.create_connection,
) -> Iterator[HTTPConnection]:
    """Open a connection all of whose reads and writes end after `seconds` from now on. Raises OSError."""
    if seconds <= 0:
        raise TimeoutError
    deadline = clock() + seconds
    host = url.hostname or ""
    secure = url.scheme == "https"
    connection = HTTPSConnection(host, url.port, context=tls) if secure else HTTPConnection(host, url.port)
    try:
        connection.sock = cast(socket.socket, connected(url, deadline, clock, tls, dial))
        yield connection
    finally:
        connection.close()


def connected(
    url: SplitResult,
    deadline: float,
    clock: Callable[[], float],
    tls: ssl.SSLContext,
    dial: Dial,
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
        if url.scheme != "https":
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
