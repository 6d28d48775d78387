"""The Transport protocol and its gRPC implementation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, Self

import grpc
from google.protobuf.message import Message

from cstp_grpc.client.targets import MAX_RESPONSE_BYTES, bearer_header, grpc_address
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.common.spans import outgoing_trace
from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.contract.rpc_errors import error_from_rpc
from cstp_grpc.contract.service_config import service_config

MAX_ERROR_BYTES = 1024 * 1024
"""Maximum size of trailing metadata, which carries errors; gRPC's default of 8 KiB cuts off detailed ones."""
PING_MILLISECONDS = 30_000
"""Silence on a connection with open calls before a keepalive ping, and the timeout of the reply. The server accepts
pings every 15 s."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class ResponseStream:
    """A response stream. Iterating raises CstpError; `close` cancels it, from any thread."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        """Wait for the next response; the iteration stops after `close`."""
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
        """Cancel the stream; the server is notified."""
        self._closed = True
        self._call.cancel()


class Transport(Protocol):
    """Carries a call to a server and returns its response."""

    def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        """Return the response of a unary method within `timeout` seconds. Raises CstpError."""

    def send(self, method: RpcMethod, requests: Iterable[Message], timeout: float) -> Message:
        """Return the response of a client-streaming method within `timeout` seconds. Raises CstpError."""

    def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> ResponseStream:
        """Return the response stream of a server-streaming method; it ends after `timeout` seconds, if given.

        Raises CstpError, now or while iterating.
        """

    def close(self) -> None:
        """Close the connections."""


class GrpcTransport:
    """Calls over one gRPC channel. Thread-safe."""

    def __init__(
        self,
        target: str,
        token: str | None,
        *,
        secure: bool,
        root_certificates: bytes | None,
        client_certificate: Path | None = None,
    ) -> None:
        self._target = target
        self._metadata = bearer_header(token)
        self._calls: dict[str, Any] = {}
        self._closed = False
        address = grpc_address(target)
        options = [*channel_options(address), *balancing_options()]
        if secure:
            self._channel = grpc.secure_channel(
                address, channel_credentials(root_certificates, client_certificate), options
            )
        else:
            self._channel = grpc.insecure_channel(address, options)

    def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        return self._invoke(self._channel.unary_unary, method, request, timeout)

    def send(self, method: RpcMethod, requests: Iterable[Message], timeout: float) -> Message:
        return self._invoke(self._channel.stream_unary, method, iter(requests), timeout)

    def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> ResponseStream:
        """Return the response stream of a server-streaming method; it ends after `timeout` seconds, if given.

        Returns once the server has sent its initial metadata, so that no later event is missed. If the server rejects
        the call, the first response raises the error.
        """
        call = self._begin(self._channel.unary_stream, method, request, timeout)
        # Blocks until the server has admitted the call, or the call has failed.
        call.initial_metadata()
        return ResponseStream(call, self._target)

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def _invoke(self, kind: Any, method: RpcMethod, request: Any, timeout: float) -> Message:
        try:
            answer: Message = self._begin(kind, method, request, timeout)
        except grpc.RpcError as error:
            if self._closed:
                raise client_closed_error() from error
            raise error_from_rpc(error, self._target) from error
        return answer

    def _begin(self, kind: Any, method: RpcMethod, request: Any, timeout: float | None) -> Any:
        try:
            metadata = (*self._metadata, *outgoing_trace.get())
            return self._callable(kind, method)(request, timeout=timeout, metadata=metadata)
        except ValueError as error:
            # gRPC raises no error of its own for a closed channel.
            if self._closed:
                raise client_closed_error() from error
            raise

    def _callable(self, kind: Any, method: RpcMethod) -> Any:
        # gRPC types a call by its messages, which only the contract knows here.
        # Threads may build the same callable twice; setdefault, which is atomic, keeps one of them.
        return self._calls.get(method.path) or self._calls.setdefault(
            method.path, kind(method.path, method.request.SerializeToString, method.response.FromString)
        )


def client_closed_error() -> Unavailable:
    """Return the error of a call on a closed client; retrying is useless."""
    error = Unavailable("The client is closed")
    error.final = True
    return error


def balancing_options() -> list[tuple[str, int | str]]:
    """Return the channel options for load balancing, from the service config."""
    return [
        ("grpc.service_config", service_config().balancing),
        # Security: DNS may supply a service config too, and must not change retries and timeouts.
        ("grpc.service_config_disable_resolution", 1),
    ]


def channel_options(address: str) -> list[tuple[str, int | str]]:
    """Return the channel options for limits, reconnection and keepalive."""
    host = address.rpartition(":")[0].strip("[]")
    return [
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_metadata_size", MAX_ERROR_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_ERROR_BYTES),
        ("grpc.primary_user_agent", "cstp-python"),
        # Otherwise all clients in a process share one connection, and so one worker of a server that has several.
        ("grpc.use_local_subchannel_pool", 1),
        # After a failure gRPC refuses calls until it reconnects. Chosen: as long as the delays of RetryPolicy, so that
        # a retry finds the channel ready to connect.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Otherwise a watch of a server whose machine has vanished waits for ever.
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PING_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        # A proxy from the environment cannot reach servers on this machine's loopback.
        ("grpc.enable_http_proxy", 0 if host in LOCAL_HOSTS else 1),
    ]
