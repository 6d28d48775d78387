"""Send HTTP requests, with bounds on time, on the size of responses and on the addresses to connect to."""

from __future__ import annotations

import functools
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from cstp_grpc.client.http_exchange import DeadlineStream, HttpExchange, HttpProtocolError

if TYPE_CHECKING:
    import ssl

NAT64_NETWORK: Final = "64:ff9b::/96"
SPECIAL_NETWORKS: Final = ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20", "fec0::/10")
"""Networks that are not part of the public internet and that some Python versions do not know: protocol assignments (a
cloud serves its metadata there), 6to4 relays, a cloud's internal address, documentation, and site-local addresses.
"""
MIN_CONNECT_SECONDS: Final = 0.001

ResolveHost = Callable[..., list[tuple[Any, ...]]]
"""Resolves a host as `socket.getaddrinfo` does."""


class AddressNotAllowed(OSError):
    """A host resolves to an address to which connections are not allowed."""


def is_public(address: str) -> bool:
    """Whether an IP address is a public unicast address of the internet."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    # Checked by the address that the packets reach: `::ffff:127.0.0.1` is loopback.
    inner = embedded_ipv4(found)
    return is_public(str(inner)) if inner is not None else is_globally_routable(found)


@functools.cache
def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text)


def is_globally_routable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address that embeds no IPv4 address is public."""
    special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or any(address in parse_network(network) for network in SPECIAL_NETWORKS)
    )
    return address.is_global and not special


def embedded_ipv4(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address embeds (mapped, 6to4 or NAT64), or None."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in parse_network(NAT64_NETWORK):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def resolve_host(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
    # As bytes, since the codec for other names takes a millisecond to load.
    return socket.getaddrinfo(host.encode() if host.isascii() else host, port, **options)


class PinnedAddressDialer:
    """Connects to hosts whose addresses are all permitted.

    The name is resolved once, and the connection goes to an address that was checked, so a second DNS answer cannot
    differ.
    """

    def __init__(self, permitted: Callable[[str], bool] = is_public, resolve: ResolveHost = resolve_host) -> None:
        self._permitted = permitted
        self._resolve = resolve

    def __call__(self, address: tuple[str, int], seconds: float) -> socket.socket:
        """Return a connection within `seconds`, excluding name resolution. Raises AddressNotAllowed and OSError."""
        host, port = address
        # getaddrinfo has no timeout of its own; the resolver's configuration bounds it.
        found = self._resolve(host, port, type=socket.SOCK_STREAM)
        for *_, place in found:
            # All addresses must be permitted, not just the one that is dialled: a name with one internal address is not
            # trusted at all.
            if not self._permitted(place[0]):
                raise AddressNotAllowed(f"{host} is at {place[0]}, where nothing is sent")
        deadline = time.monotonic() + seconds
        problem = OSError(f"{host} has no address")
        for family, kind, protocol, _, place in found:
            try:
                return connect_socket(family, kind, protocol, place, deadline - time.monotonic())
            except OSError as error:
                problem = error
        raise problem


def connect_socket(family: int, kind: int, protocol: int, place: Any, seconds: float) -> socket.socket:
    """Connect a socket to an address. Raises OSError."""
    connection = socket.socket(family, kind, protocol)
    try:
        # Zero would make the socket non-blocking, and a negative value raises ValueError.
        connection.settimeout(max(seconds, MIN_CONNECT_SECONDS))
        connection.connect(place)
    except BaseException:
        connection.close()
        raise
    return connection


MIN_TIMEOUT_SECONDS: Final = 0.001
"""The smallest timeout: 0 makes a socket non-blocking, and a negative value raises ValueError."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class ResponseTooLarge(HttpProtocolError):
    """A response is larger than the limit."""


class HttpResponse(NamedTuple):
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
        tls: ssl.SSLContext | None,
        *,
        max_bytes: int = 0,
        permitted: Callable[[str], bool] = lambda _address: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to send; without `tls` only to `http` addresses.

        `max_bytes` is the size of the largest body that `fetch` returns.
        """
        self._tls = tls
        self.max_bytes = max_bytes
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
            for piece in response.pieces():
                received += piece
                # Counted as they arrive: a declared length may be wrong or missing.
                if len(received) > self.max_bytes:
                    raise ResponseTooLarge(f"more than {self.max_bytes} bytes")
            return HttpResponse(response.status, response.headers, bytes(received))

    def post(self, url: SplitResult, headers: Mapping[str, str], body: bytes, seconds: float) -> int:
        """Post a body and return the status; the rest of the response is not read. Raises as `fetch` does."""
        # The body is not read, so that the connection could not be used again anyway.
        with self._exchange("POST", url, {"connection": "close", **headers}, body, seconds) as response:
            return response.status

    @contextmanager
    def _exchange(
        self, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> Iterator[HttpExchange]:
        """Send a request and yield the response, whose body was not read yet."""
        if seconds <= 0:
            raise TimeoutError("timed out")
        deadline = self._clock() + seconds
        named = {"host": host_header(encode_host(url), url), "accept-encoding": "identity", **headers}
        with closing(self._connect(url, deadline)) as stream:
            yield HttpExchange(stream, method, request_target(url), named, body)

    def _connect(self, url: SplitResult, deadline: float) -> DeadlineStream:
        """Connect to the host of a URL. Raises OSError."""
        host, port = url.hostname or "", url.port or DEFAULT_PORTS[url.scheme]
        raw = self._dial((host, port), max(deadline - self._clock(), MIN_TIMEOUT_SECONDS))
        stream = DeadlineStream(raw, deadline, self._clock)
        try:
            # A request larger than a segment would wait for the acknowledgement of its beginning.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.scheme == "https":
                assert self._tls is not None, "callers give one for https"
                stream.start_tls(self._tls, host)
        except BaseException:
            stream.close()
            raise
        return stream


MAX_CONNECTIONS: Final = 100
MAX_IDLE_CONNECTIONS: Final = 20
IDLE_SECONDS: Final = 5.0
"""Limits of a pool: open connections, idle connections, and seconds until idle ones are closed. As in httpx."""


class PooledHttpClient:
    """Sends requests to one server, on connections that stay open. Thread-safe.

    Redirects are not followed, and proxies are not used. A user and password in the URL are sent as basic
    authentication.
    """

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        """Prepare to send to `http://HOST:PORT` or `https://…`, with a path if a gateway needs one."""
        # Not loaded before it is needed; httpx would also load rich and click.
        import httpcore

        self._url = urlsplit(url.rstrip("/"))
        self._headers = {"accept": "application/json", **basic_authentication(self._url)}
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
        )
        self._closed = False

    @property
    def logged_url(self) -> str:
        return self._url._replace(netloc=self._url.netloc.rpartition("@")[2]).geturl()

    def request_json(self, method: str, path: str, value: object, seconds: float) -> HttpResponse:
        """Send a value as JSON, or no body for None, and return the whole response.

        `seconds` bounds each wait. Raises TimeoutError; ConnectionResetError if a connection ended before the response,
        as one may that was open for a while; other OSErrors if no host answers; HttpProtocolError.
        """
        import httpcore

        if self._closed:
            raise ConnectionError("the client is closed")
        host = encode_host(self._url)
        target = request_target(self._url._replace(path=self._url.path + path))
        address = httpcore.URL(scheme=self._url.scheme, host=host, port=self._url.port, target=target)
        headers, body = {"host": host_header(host, self._url), **self._headers}, None
        if value is not None:
            headers["content-type"] = "application/json"
            body = json.dumps(value).encode()
        sent = [(name.encode("ascii"), text.encode("ascii")) for name, text in headers.items()]
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        try:
            response = self._pool.request(method, address, headers=sent, content=body, extensions={"timeout": timeouts})
        except httpcore.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except (httpcore.ReadError, httpcore.WriteError, httpcore.RemoteProtocolError) as error:
            raise ConnectionResetError(str(error)) from error
        except httpcore.NetworkError as error:
            raise ConnectionError(str(error)) from error
        except (httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
            raise HttpProtocolError(str(error)) from error
        names = {name.decode("ascii").lower(): text.decode("latin-1") for name, text in response.headers}
        return HttpResponse(response.status, names, response.content)

    def close(self) -> None:
        """Close all connections; later requests are refused."""
        self._closed = True
        self._pool.close()


def basic_authentication(url: SplitResult) -> dict[str, str]:
    """Return the header for the user and password of a URL; no header without a user."""
    if not url.username:
        return {}
    import base64

    named = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return {"authorization": f"Basic {base64.b64encode(named.encode()).decode()}"}


def encode_host(url: SplitResult) -> str:
    """Return the host of a URL in ASCII, without brackets. Raises OSError if no host has such a name."""
    host = url.hostname or ""
    # As the codec would, which takes a millisecond to load.
    if host.isascii() and all(0 < len(label) < 64 for label in host.removesuffix(".").split(".")):
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise OSError(f"{host} is not a valid host name") from error


def host_header(host: str, url: SplitResult) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if url.port in {None, DEFAULT_PORTS[url.scheme]} else f"{name}:{url.port}"


def request_target(url: SplitResult) -> str:
    return (url.path or "/") + (f"?{url.query}" if url.query else "")
