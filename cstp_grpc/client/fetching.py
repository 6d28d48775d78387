"""Send one HTTP request, with bounds on the time and on the size of the response."""

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

CHUNK_BYTES: Final = 65_536
MIN_TIMEOUT_SECONDS: Final = 0.001
"""The smallest timeout: 0 makes a socket non-blocking, and a negative value raises ValueError."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

DialHost = Callable[[tuple[str, int], float], socket.socket]
"""Connects to a host and port within some seconds. Raises OSError."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response; `headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ResponseTooLarge(HTTPException):
    """A response is larger than the limit."""


def fetch_response(
    verb: str,
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes | None,
    seconds: float,
    tls: ssl.SSLContext,
    max_bytes: int,
    clock: Callable[[], float] = time.monotonic,
) -> HttpResponse:
    """Send one request and return the whole response; redirects are not followed and proxies are not used.

    Raises TimeoutError after `seconds`, even if the response trickles; other OSErrors if no host answers;
    ResponseTooLarge; HTTPException if the response is not HTTP. Name resolution is not bounded, and each of the
    host's addresses gets the whole time to accept the connection.
    """
    with open_connection(url, seconds, tls, clock) as connection:
        connection.request(verb, request_target(url), body, dict(headers))
        with connection.getresponse() as response:
            content = read_body(response, max_bytes)
            return HttpResponse(
                response.status, {name.lower(): value for name, value in response.getheaders()}, content
            )


def read_body(response: HTTPResponse, max_bytes: int) -> bytes:
    """Return the body of a response. Raises ResponseTooLarge."""
    received = bytearray()
    while chunk := response.read1(CHUNK_BYTES):
        received += chunk
        if len(received) > max_bytes:
            raise ResponseTooLarge(f"more than {max_bytes} bytes")
    return bytes(received)


def request_target(url: SplitResult) -> str:
    """Return the request target of a URL: its path and query."""
    return (url.path or "/") + (f"?{url.query}" if url.query else "")


@contextmanager
def open_connection(
    url: SplitResult,
    seconds: float,
    tls: ssl.SSLContext,
    clock: Callable[[], float],
    dial: DialHost = socket.create_connection,
) -> Iterator[HTTPConnection]:
    """Open a connection whose reads and writes all fail `seconds` from now. Raises OSError."""
    if seconds <= 0:
        raise TimeoutError
    deadline = clock() + seconds
    host = url.hostname or ""
    secure = url.scheme == "https"
    connection = HTTPSConnection(host, url.port, context=tls) if secure else HTTPConnection(host, url.port)
    try:
        connection.sock = cast(socket.socket, connect_with_deadline(url, deadline, clock, tls, dial))
        yield connection
    finally:
        connection.close()


def connect_with_deadline(
    url: SplitResult,
    deadline: float,
    clock: Callable[[], float],
    tls: ssl.SSLContext,
    dial: DialHost,
) -> DeadlineSocket:
    """Connect to the host of a URL. Raises OSError."""
    host = url.hostname or ""
    left = max(deadline - clock(), MIN_TIMEOUT_SECONDS)
    try:
        raw = dial((host, url.port or DEFAULT_PORTS[url.scheme]), left)
    except UnicodeError as error:
        raise OSError(f"{host} is no name of a host") from error
    try:
        # A request is sent in two pieces, the second of which would wait for the first to be acknowledged.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        timed = DeadlineSocket(raw, deadline, clock)
        if url.scheme != "https":
            return timed
        timed.apply_deadline()
        return DeadlineSocket(tls.wrap_socket(raw, server_hostname=host), deadline, clock)
    except BaseException:
        raw.close()
        raise


class DeadlineSocket:
    """The part of a socket that http.client uses, with one deadline for all reads and writes."""

    def __init__(self, raw: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._raw = raw
        self._deadline = deadline
        self._clock = clock

    def sendall(self, data: ReadableBuffer) -> None:
        """Send bytes. Raises TimeoutError after the deadline."""
        self.apply_deadline()
        self._raw.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a file that reads the received bytes."""
        return io.BufferedReader(DeadlineReader(self, self._raw.makefile("rb", buffering=0)), CHUNK_BYTES)

    def close(self) -> None:
        """Close the socket once its files are closed."""
        self._raw.close()

    def apply_deadline(self) -> None:
        """Set the socket's timeout to the time left. Raises TimeoutError if the deadline has passed."""
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._raw.settimeout(left)


class DeadlineReader(io.RawIOBase):
    """Reads from a DeadlineSocket. Raises TimeoutError after the deadline."""

    def __init__(self, timed: DeadlineSocket, received: socket.SocketIO) -> None:
        self._timed = timed
        self._received = received

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read the available bytes into a buffer, at least one unless at the end; return the number."""
        self._timed.apply_deadline()
        return self._received.readinto(buffer)

    def close(self) -> None:
        """Close the file."""
        self._received.close()
        super().close()
