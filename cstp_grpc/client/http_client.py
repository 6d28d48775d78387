"""Send HTTP requests, with bounds on the time, on the size of the response, and on the addresses to connect to."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import SplitResult

from cstp_grpc.client.addresses import PinnedAddressDialer

if TYPE_CHECKING:
    import httpcore

MIN_TIMEOUT_SECONDS: Final = 0.001
"""The smallest timeout: 0 makes a socket non-blocking, and a negative value raises ValueError."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class HttpProtocolError(Exception):
    """A response is not HTTP, or a request cannot be expressed in HTTP."""


class ResponseTooLarge(HttpProtocolError):
    """A response is larger than the limit."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response; `headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Sends each request on a connection of its own. Thread-safe.

    Redirects are not followed, proxies are not used, and no header is sent but the given ones and those that say how
    long the body is and how it may come. A host is connected to only if `permitted` returns True for all its IP
    addresses; its name stays in the Host header and is what the certificate must be for.
    """

    def __init__(
        self,
        tls: ssl.SSLContext,
        *,
        max_bytes: int = 0,
        permitted: Callable[[str], bool] = lambda _address: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to send; `max_bytes` is the size of the largest body that `fetch` returns."""
        self._tls = tls
        self._max_bytes = max_bytes
        self._dial = PinnedAddressDialer(permitted)
        self._clock = clock

    def fetch(
        self, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> HttpResponse:
        """Send a request and return the whole response.

        Raises TimeoutError after `seconds`, even if the response trickles; other OSErrors if no host answers, and
        AddressNotAllowed among them; ResponseTooLarge; HttpProtocolError. Name resolution is not bounded.
        """
        with self._exchange(method, url, headers, body, seconds) as response:
            received = bytearray()
            for chunk in response.iter_stream():
                received += chunk
                # Counted as the chunks arrive: a declared length may be wrong or missing.
                if len(received) > self._max_bytes:
                    raise ResponseTooLarge(f"more than {self._max_bytes} bytes")
            names = {name.decode("ascii").lower(): value.decode("latin-1") for name, value in response.headers}
            return HttpResponse(response.status, names, bytes(received))

    def post(self, url: SplitResult, headers: Mapping[str, str], body: bytes, seconds: float) -> int:
        """Post a body and return the status; the rest of the response is not read. Raises as `fetch` does."""
        # The body is not read, so that the connection could not be used again anyway.
        with self._exchange("POST", url, {"connection": "close", **headers}, body, seconds) as response:
            return response.status

    @contextmanager
    def _exchange(
        self, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> Iterator[httpcore.Response]:
        """Send a request and yield the response, whose body was not read yet."""
        # Not loaded before it is needed: it takes 25 ms, and most commands and many servers send no HTTP requests.
        import httpcore

        if seconds <= 0:
            raise TimeoutError
        deadline = self._clock() + seconds
        host = encode_host(url)
        named = {"host": host_header(host, url), "accept-encoding": "identity", **headers}
        try:
            # Spaces around a value are no part of it, and h11 refuses them.
            sent = [(name.encode("ascii"), value.strip(" ").encode("latin-1")) for name, value in named.items()]
            target = request_target(url).encode("ascii")
            address = httpcore.URL(scheme=url.scheme, host=host, port=url.port, target=target)
            # Dialled here and handed over: httpcore would resolve the name again, and connect to an address that nobody
            # has judged.
            stream = cast("httpcore.NetworkStream", self._connect(url, deadline))
            with (
                httpcore.HTTP11Connection(address.origin, stream) as connection,
                connection.stream(method, address, headers=sent, content=body) as response,
            ):
                yield response
        except (httpcore.ProtocolError, UnicodeError) as error:
            raise HttpProtocolError(str(error)) from error

    def _connect(self, url: SplitResult, deadline: float) -> DeadlineStream:
        """Connect to the host of a URL. Raises OSError."""
        host, port = url.hostname or "", url.port or DEFAULT_PORTS[url.scheme]
        raw = self._dial((host, port), max(deadline - self._clock(), MIN_TIMEOUT_SECONDS))
        stream = DeadlineStream(raw, deadline, self._clock)
        try:
            # A request is sent in two pieces, the second of which would wait for the first to be acknowledged.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.scheme == "https":
                stream.start_tls(self._tls, host)
        except BaseException:
            stream.close()
            raise
        return stream


class DeadlineStream:
    """The part of an `httpcore.NetworkStream` that a connection uses, with one deadline for all reads and writes.

    It is not derived from that class, so that httpcore is loaded with the first request.
    """

    def __init__(self, raw: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._raw = raw
        self._deadline = deadline
        self._clock = clock
        self._answered = False

    def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Encrypt what follows. Raises TimeoutError after the deadline, and other OSErrors."""
        self._apply_deadline()
        # By the name and not by the address that was dialled: the name is what the certificate must be for.
        self._raw = tls.wrap_socket(self._raw, server_hostname=host)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline counts
        """Return the available bytes, at least one unless at the end. Raises TimeoutError after the deadline."""
        self._apply_deadline()
        data = self._raw.recv(max_bytes)
        # To h11 an early end is a protocol error, but a server that closes before it answers is not reachable.
        if not data and not self._answered:
            raise ConnectionResetError("the server closed the connection without a response")
        self._answered = True
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the deadline counts
        """Send bytes. Raises TimeoutError after the deadline."""
        self._apply_deadline()
        self._raw.sendall(buffer)

    def close(self) -> None:
        """Close the socket."""
        self._raw.close()

    def _apply_deadline(self) -> None:
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._raw.settimeout(left)


def encode_host(url: SplitResult) -> str:
    """Return the host of a URL in ASCII, without brackets. Raises OSError if no host has such a name."""
    host = url.hostname or ""
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise OSError(f"{host} is no name of a host") from error


def host_header(host: str, url: SplitResult) -> str:
    """Return the Host header for a URL with an encoded host."""
    name = f"[{host}]" if ":" in host else host
    return name if url.port in {None, DEFAULT_PORTS[url.scheme]} else f"{name}:{url.port}"


def request_target(url: SplitResult) -> str:
    """Return the request target of a URL: its path and query."""
    return (url.path or "/") + (f"?{url.query}" if url.query else "")
