"""The client: a typed method for each rpc of the contract, `call` for those that are known at run time only."""

from __future__ import annotations

import functools
import random as system_random
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf.message import Message

from cstp_grpc.calling import Call
from cstp_grpc.client.calls import Calls
from cstp_grpc.client.contract import Method
from cstp_grpc.client.retry import DEFAULT_RETRIES, Retrier, RetryPolicy
from cstp_grpc.client.transport import Answers, GrpcTransport, Transport, scheme_of
from cstp_grpc.gen.methods import Cstp, IntentLayer, Liaison

T = TypeVar("T")


class CstpClient(Cstp):
    """Calls a CSTP server, and closes its connection at the end of a `with` block. Safe for many threads.

    `target` is `grpc://host:port` (or just `host:port`), `grpcs://host:port` with TLS, or the `http://` or `https://`
    address of a bridge; `root_certificates` (PEM) replaces the system's authorities. `timeout` is the seconds that a
    call may take, repetitions included, in place of those of the service config; every method takes another for itself.
    Calls that failed for a passing reason are repeated as `retries` says, where the contract declares them idempotent.
    `sleep`, `random` and `clock` are the real ones unless given. Every method raises a CstpError: the class names the
    reason.
    """

    def __init__(
        self,
        target: str,
        token: str | None = None,
        *,
        timeout: float | None = None,
        retries: RetryPolicy = DEFAULT_RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = system_random.random,
        clock: Callable[[], float] = time.monotonic,
        root_certificates: bytes | None = None,
    ) -> None:
        self._transport = open_transport(target, token, root_certificates)
        self._calls = Calls(self._transport, Retrier(retries, sleep, random, clock), timeout)
        super().__init__(self._calls)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; the client cannot be used any more."""
        self._transport.close()

    @functools.cached_property
    def liaison(self) -> Liaison:
        """The methods of chat sessions and of their routing to liaison agents."""
        return Liaison(self._calls)

    @functools.cached_property
    def intent_layer(self) -> IntentLayer:
        """The methods of what governs code, and of what agents learned of it."""
        return IntentLayer(self._calls)

    def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Make a call that `cstp_grpc.gen.calls` describes, and return its answer."""
        return self._calls.make(call, timeout)

    def call(self, method: Method, request: Message, timeout: float | None = None) -> Message:
        """Call a unary method of the contract and return its answer.

        An announcement, a record or a chat message that lacks the identifier which makes a repetition safe gets one.
        """
        return self._calls.call(method, request, timeout)

    def watch(self, method: Method, request: Message, timeout: float | None = None) -> Answers:
        """Call a method of the contract that answers with a stream, and return its answers as they come; gRPC only.

        The stream ends with its `with` block, by its `close`, or after `timeout` seconds with DeadlineExceeded; the
        client's own timeout does not bound it. It is not begun again: only the caller knows where to go on.
        """
        return self._calls.stream(method, request, timeout)


def open_transport(target: str, token: str | None, root_certificates: bytes | None) -> Transport:
    """Return the transport that a target's scheme names. Raises InvalidArgument."""
    scheme = scheme_of(target)
    if scheme in {"http", "https"}:
        # Not loaded before it is needed: HTTP takes a while, and most clients speak gRPC.
        from cstp_grpc.client.jsonrpc import JsonRpcTransport

        return JsonRpcTransport(target, token, root_certificates=root_certificates)
    return GrpcTransport(target, token, secure=scheme == "grpcs", root_certificates=root_certificates)
