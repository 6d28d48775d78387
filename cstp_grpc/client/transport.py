"""How calls travel: one interface, and gRPC behind it."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import SplitResult, urlsplit

import grpc
from google.protobuf.message import Message

from cstp_grpc.client.contract import Method
from cstp_grpc.client.service_config import service_config
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.contract.rpc_errors import error_from_rpc
from cstp_grpc.errors import InvalidArgument, Unavailable

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024
PING_MILLISECONDS = 30_000
"""How long a server with open calls may be silent before it is asked whether it is there, and may take to answer."""
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Answers:
    """The answers of a stream, as they come. Iterating raises CstpError; `close` ends it, from any thread."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target
        self._closed = False

    def __enter__(self) -> Self:
        """Return the answers themselves."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the stream."""
        self.close()

    def __iter__(self) -> Self:
        """Return the answers themselves."""
        return self

    def __next__(self) -> Message:
        """Return the next answer, once there is one; there is none any more after `close`."""
        if self._closed:
            raise StopIteration
        try:
            answer: Message = next(self._call)
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise error_from_rpc(error, self._target) from error
        return answer

    def close(self) -> None:
        """End the stream; the server notices it."""
        self._closed = True
        self._call.cancel()


class Transport(Protocol):
    """Carries a call to a server and its answer back."""

    def call(self, method: Method, request: Message, timeout: float) -> Message:
        """Return the answer of a unary method within `timeout` seconds. Raises CstpError."""

    def send(self, method: Method, requests: Iterable[Message], timeout: float) -> Message:
        """Return the answer of a method that takes a stream, within `timeout` seconds. Raises CstpError."""

    def watch(self, method: Method, request: Message, timeout: float | None) -> Answers:
        """Return the answers of a method that answers with a stream, which ends after `timeout` seconds, if ever.

        Raises CstpError, now or while they come.
        """

    def close(self) -> None:
        """Give back what is held open."""


class GrpcTransport:
    """Calls over one gRPC channel; safe for many threads."""

    def __init__(self, target: str, token: str | None, *, secure: bool, root_certificates: bytes | None) -> None:
        self._target = target
        self._metadata = authorization(token)
        self._calls: dict[str, Any] = {}
        self._closed = False
        address = grpc_address(target)
        options = [*channel_options(address), *balancing_options()]
        if secure:
            self._channel = grpc.secure_channel(address, channel_credentials(root_certificates), options)
        else:
            self._channel = grpc.insecure_channel(address, options)

    def call(self, method: Method, request: Message, timeout: float) -> Message:
        """Return the answer of a unary method within `timeout` seconds. Raises CstpError."""
        return self._invoke(self._channel.unary_unary, method, request, timeout)

    def send(self, method: Method, requests: Iterable[Message], timeout: float) -> Message:
        """Return the answer of a method that takes a stream, within `timeout` seconds. Raises CstpError."""
        return self._invoke(self._channel.stream_unary, method, iter(requests), timeout)

    def watch(self, method: Method, request: Message, timeout: float | None) -> Answers:
        """Return the answers of a method that answers with a stream, which ends after `timeout` seconds, if ever.

        Returns once the server has let the caller in, so that nothing that happens from then on is missed; that it did
        not is raised by the first answer.
        """
        call = self._begin(self._channel.unary_stream, method, request, timeout)
        call.initial_metadata()
        return Answers(call, self._target)

    def close(self) -> None:
        """Close the channel."""
        self._closed = True
        self._channel.close()

    def _invoke(self, kind: Any, method: Method, request: Any, timeout: float) -> Message:
        try:
            answer: Message = self._begin(kind, method, request, timeout)
        except grpc.RpcError as error:
            if self._closed:
                raise closed() from error
            raise error_from_rpc(error, self._target) from error
        return answer

    def _begin(self, kind: Any, method: Method, request: Any, timeout: float | None) -> Any:
        try:
            return self._callable(kind, method)(request, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            # All that gRPC says of a closed channel.
            if self._closed:
                raise closed() from error
            raise

    def _callable(self, kind: Any, method: Method) -> Any:
        # gRPC types a call by its messages, which only the contract knows here.
        return self._calls.get(method.path) or self._calls.setdefault(
            method.path, kind(method.path, method.request.SerializeToString, method.response.FromString)
        )


def closed() -> Unavailable:
    """Return the error of a call of a client that is closed; no other attempt is of any use."""
    error = Unavailable("The client is closed")
    error.final = True
    return error


def authorization(token: str | None) -> list[tuple[str, str]]:
    """Return the header that carries a bearer token. Raises InvalidArgument where it cannot be sent."""
    if token is None:
        return []
    if not token or not all("!" <= character <= "~" for character in token):
        raise InvalidArgument.field("token", "must be visible ASCII characters without spaces")
    return [("authorization", f"Bearer {token}")]


def scheme_of(target: str) -> str:
    """Return `grpc`, `grpcs`, `http` or `https`; a bare `host:port` is gRPC. Raises InvalidArgument."""
    scheme = target.partition("://")[0].lower() if "://" in target else "grpc"
    if scheme not in {"grpc", "grpcs", "http", "https"}:
        # Not shown: it may hold a password.
        raise InvalidArgument.field("target", "must begin with grpc://, grpcs://, http:// or https://")
    return scheme


def grpc_address(target: str) -> str:
    """Return `host:port` of a gRPC target. Raises InvalidArgument."""
    url, port = split_target(target if "://" in target else f"grpc://{target}")
    if not url.hostname or port is None or url.path.strip("/") or url.query or url.fragment:
        raise InvalidArgument.field("target", f"{target!r} is not of the form grpc://HOST:PORT")
    return f"[{url.hostname}]:{port}" if ":" in url.hostname else f"{url.hostname}:{port}"


def split_target(target: str) -> tuple[SplitResult, int | None]:
    """Return the URL of a target and its port, if it names one. Raises InvalidArgument."""
    try:
        url = urlsplit(target)
        port = url.port
    except ValueError as error:
        # Not shown: it may hold a password.
        raise InvalidArgument.field("target", "has no usable host or port") from error
    if "@" in url.netloc:
        raise InvalidArgument.field("target", "must not name a user: a token says who calls")
    return url, port


def balancing_options() -> list[tuple[str, int | str]]:
    """Return how a channel chooses among servers: those that are well in turn, as the service config says."""
    return [
        ("grpc.service_config", service_config().balancing),
        # What the names of servers say of it, as DNS may, is not the contract's.
        ("grpc.service_config_disable_resolution", 1),
    ]


def channel_options(address: str) -> list[tuple[str, int | str]]:
    """Return how a channel behaves."""
    host = address.rpartition(":")[0].strip("[]")
    return [
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        # Errors say in trailing metadata which fields are wrong and which guardrails block.
        ("grpc.max_metadata_size", MAX_ERROR_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_ERROR_BYTES),
        ("grpc.primary_user_agent", "cstp-python"),
        # Clients of one server would share a connection, and so a process of a server that has several.
        ("grpc.use_local_subchannel_pool", 1),
        # After a failure gRPC refuses calls until it connects again; our own pauses are of this order.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Who watches a server that vanished without a word would wait for ever.
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PING_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        # A proxy for the internet does not reach this machine's own servers.
        ("grpc.enable_http_proxy", 0 if host in LOCAL else 1),
    ]
