"""Unary gRPC calls on the bridge's own event loop.

The channels of grpcio hand each call from thread to thread, which costs more than all that the bridge does with it
(docs/adr/0018-unary-calls-on-the-event-loop.md). Errors are those of grpcio.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import grpc

from bridge.http2.connection import ConnectionLost, Http2Connection, Http2Response, RequestFailed, StreamReset
from bridge.http2.header_blocks import Header, encode_header
from cstp_grpc.config import join_host_port

MAX_METADATA_BYTES: Final = 1_048_576
"""Maximum size of the metadata of an answer. Error details are in metadata, where gRPC's default of 8 KiB is too
little."""
RETRY_PAUSE_SECONDS: Final = 0.1
"""Seconds after a failed connection in which no other is tried, so that calls fail at once. Chosen: a server that is
back is called again a moment later, and one that is away is not overrun."""
CONNECT_SECONDS: Final = 5.0
"""Seconds that a connection may take to be made, with TLS and over a wide network. Chosen: as gRPC's channel has it in
`upstream`; without it, a server whose machine was away would be asked again only after a minute or two."""
UNACKNOWLEDGED_MILLISECONDS: Final = 20_000
"""Time after which a connection counts as broken if the other machine acknowledges nothing. The same as gRPC's default
for keepalive pings."""
MAX_ATTEMPTS: Final = 3
"""Attempts of a call that the server has not begun to process, because it closes its connections. Chosen: the second
succeeds on a new connection, unless that meets the same."""
DEFAULT_PORT: Final = 443
"""The port of a target that names none, as gRPC has it."""
LONGEST_TIMEOUT_MILLISECONDS: Final = 99_999_999
"""The longest `grpc-timeout` in milliseconds; it has eight digits at most."""

MESSAGE_PREFIX_BYTES: Final = 5
"""A flag for compression, and the length of the message."""
GRPC_STATUS, GRPC_MESSAGE = "grpc-status", "grpc-message"
TRANSPORT_HEADERS: Final = frozenset(
    {GRPC_STATUS, GRPC_MESSAGE, "content-type", "grpc-encoding", "grpc-accept-encoding"}
)
"""Headers that are no metadata, as grpcio has it."""
STATUS_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
CODE_OF_HTTP_STATUS: Final = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.UNAVAILABLE,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}
"""The status of a call that something else than gRPC answered (gRPC's document http-grpc-status-mapping)."""
CODE_OF_STREAM_ERROR: Final = {
    0x7: grpc.StatusCode.UNAVAILABLE,
    0x8: grpc.StatusCode.CANCELLED,
    0xB: grpc.StatusCode.RESOURCE_EXHAUSTED,
    0xC: grpc.StatusCode.PERMISSION_DENIED,
}
"""The status of a call whose stream was reset with an error code (gRPC's document PROTOCOL-HTTP2); else INTERNAL."""

MetadataPair = tuple[str, str | bytes]
UnaryCall = Callable[..., Awaitable[Any]]
"""Calls one method: takes the request, and `timeout` in seconds and `metadata` by name. Raises grpc.aio.AioRpcError."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a gRPC server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Parse `host:port`, `[IPv6]:port` or a host alone. Raises ValueError."""
        host, separator, port = text.rpartition(":")
        if not separator or port.endswith("]"):
            host, port = text, str(DEFAULT_PORT)
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        """Return it as `parse` takes it."""
        return join_host_port(self.host, self.port)


class ServerConnection:
    """The connection to one server, opened at the first call and again when it has ended. For one event loop."""

    def __init__(self, address: ServerAddress, tls: ssl.SSLContext | None, connect_seconds: float) -> None:
        self._address = address
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._open: Http2Connection | None = None
        self._opening: asyncio.Task[Http2Connection] | None = None
        self._retry_at = 0.0
        self._failure = ""
        self._all: set[Http2Connection] = set()
        """Also those that begin no more requests, until they are lost."""

    async def current(self) -> Http2Connection:
        """Return a connection that takes requests. Raises ConnectionLost if none can be opened."""
        if self._open is not None and self._open.is_usable:
            return self._open
        if self._opening is None:
            if asyncio.get_running_loop().time() < self._retry_at:
                raise ConnectionLost(self._failure, processed=False)
            self._opening = asyncio.create_task(self._connect())
            self._opening.add_done_callback(self._note_opened)
        # Shielded: all calls that arrive meanwhile wait for it, of which one may be cancelled.
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Close all connections."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await asyncio.gather(*(connection.close() for connection in list(self._all)))

    async def _connect(self) -> Http2Connection:
        loop = asyncio.get_running_loop()
        address = self._address
        try:
            async with asyncio.timeout(self._connect_seconds):
                transport, connection = await loop.create_connection(
                    lambda: Http2Connection(self._all.discard, MAX_METADATA_BYTES),
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls else None,
                )
        except OSError as error:
            self._retry_at = loop.time() + RETRY_PAUSE_SECONDS
            # That of a timeout, which is an OSError too, says nothing.
            reason = str(error) or f"not within {self._connect_seconds:g} seconds"
            self._failure = f"failed to connect to {address}: {reason}"
            raise ConnectionLost(self._failure, processed=False) from error
        limit_silence(transport)
        self._open = connection
        self._all.add(connection)
        return connection

    def _note_opened(self, opening: asyncio.Task[Http2Connection]) -> None:
        self._opening = None
        if not opening.cancelled():
            # Looked at, so that asyncio does not log a failure whose callers have all gone.
            opening.exception()


class GrpcChannel:
    """Makes unary calls to a gRPC server, or to several that are called in turn. For one event loop."""

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        tls: ssl.SSLContext | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._scheme = "https" if tls else "http"
        self._servers = [ServerConnection(address, tls, connect_seconds) for address in addresses]
        self._authority = str(addresses[0])
        self._next = 0
        self._closed = False

    def unary_unary(
        self,
        path: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        **_: object,
    ) -> UnaryCall:
        """Return the callable for a method, by the parameters that generated stubs give to a channel of grpcio."""
        fixed = b"".join(
            encode_header(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", self._scheme),
                (":path", path),
                (":authority", self._authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "cstp-bridge"),
            )
        )

        async def call(request: Any, *, timeout: float | None = None, metadata: Sequence[tuple[str, str]] = ()) -> Any:
            content = request_serializer(request) if request_serializer else request
            headers = fixed if timeout is None else fixed + encode_header("grpc-timeout", format_timeout(timeout))
            for name, value in metadata:
                headers += encode_header(name, value)
            try:
                async with asyncio.timeout(timeout):
                    response = await self._send(headers, b"\0" + len(content).to_bytes(4) + content)
            except TimeoutError:
                raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
            except StreamReset as error:
                code = CODE_OF_STREAM_ERROR.get(error.code, grpc.StatusCode.INTERNAL)
                raise rpc_error(code, str(error)) from error
            except RequestFailed as error:
                raise rpc_error(grpc.StatusCode.UNAVAILABLE, str(error)) from error
            answer = read_answer(response)
            return response_deserializer(answer) if response_deserializer else answer

        return call

    async def close(self) -> None:
        """Close all connections; calls in progress are cancelled, as by grpcio."""
        self._closed = True
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _send(self, headers: bytes, content: bytes) -> Http2Response:
        """Send a request to the next server that can be reached. Raises RequestFailed, and UsageError after `close`."""
        for attempts_left in reversed(range(max(MAX_ATTEMPTS, len(self._servers)))):
            # Each time: who waited for its turn on a connection must not open another one after `close`.
            if self._closed:
                raise grpc.aio.UsageError("the channel is closed")
            server = self._servers[self._next]
            self._next = (self._next + 1) % len(self._servers)
            try:
                return await (await server.current()).request(headers, content)
            except RequestFailed as error:
                if error.processed or not attempts_left:
                    raise
        raise AssertionError("the last attempt returns or raises")


def format_timeout(seconds: float) -> str:
    """Return the value of `grpc-timeout`."""
    return f"{min(math.ceil(seconds * 1000), LONGEST_TIMEOUT_MILLISECONDS)}m"


def read_answer(response: Http2Response) -> bytes:
    """Return the message of a response. Raises grpc.aio.AioRpcError."""
    headers = response.headers or []
    # Without content the headers are the trailers as well ("Trailers-Only" in PROTOCOL-HTTP2).
    trailers = response.trailers or headers
    found = dict(trailers)
    status = found.get(GRPC_STATUS)
    if status is None:
        http_status = dict(headers).get(":status", "")
        code = CODE_OF_HTTP_STATUS.get(int(http_status) if http_status.isdecimal() else 0, grpc.StatusCode.UNKNOWN)
        raise rpc_error(code, f"HTTP {http_status} without a status of gRPC", headers, trailers)
    if status != "0":
        code = STATUS_CODES.get(int(status) if status.isdecimal() else -1, grpc.StatusCode.UNKNOWN)
        message = unquote(found.get(GRPC_MESSAGE, ""), errors="replace")
        raise rpc_error(code, message, headers if response.trailers else (), trailers)
    content = response.content
    if len(content) < MESSAGE_PREFIX_BYTES or content[0] or int.from_bytes(content[1:5]) != len(content) - 5:
        raise rpc_error(grpc.StatusCode.INTERNAL, "The answer is not one uncompressed message", headers, trailers)
    return content[MESSAGE_PREFIX_BYTES:]


def rpc_error(
    code: grpc.StatusCode, details: str, initial: Iterable[Header] = (), trailing: Iterable[Header] = ()
) -> grpc.aio.AioRpcError:
    """Return the error of a failed call as grpcio raises it."""
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(*read_metadata(initial)), grpc.aio.Metadata(*read_metadata(trailing)), details
    )


def read_metadata(headers: Iterable[Header]) -> list[MetadataPair]:
    """Return the metadata among headers; values of names that end in `-bin` are bytes."""
    return [
        (name, decode_binary_value(value) if name.endswith("-bin") else value)
        for name, value in headers
        if not name.startswith(":") and name not in TRANSPORT_HEADERS
    ]


def decode_binary_value(value: str) -> bytes:
    """Decode binary metadata, which is base64 with or without padding; empty if it is not."""
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def limit_silence(transport: asyncio.BaseTransport) -> None:
    """Have the system end a connection whose other machine has vanished, where it can (Linux)."""
    opened: socket.socket | None = transport.get_extra_info("socket")
    if opened is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)
