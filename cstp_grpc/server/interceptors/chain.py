"""How interceptors of ours are put around a method of the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc
from google.protobuf.message import Message

from cstp_grpc.client.contract import Method
from cstp_grpc.errors import CstpError
from cstp_grpc.server.status import to_status


@dataclass(slots=True)
class Call:
    """One call on its way through the interceptors; `request_id` is set by the first of them.

    `send` sends an answer of a method that answers with a stream, and None after the last; other methods have none.
    """

    method: Method
    context: grpc.ServicerContext
    metadata: Mapping[str, str | bytes]
    send: Callable[[Any], None] | None = None
    repeated_keys: frozenset[str] = frozenset()
    """The keys that were sent more than once; `metadata` has the last value of each."""
    request_id: str = ""
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a request whose bytes do not parse."""


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

Proceed = Callable[[Call, Any], Any]
"""The rest of the way: the interceptors that follow, and at last the servicer."""


class Interceptor(Protocol):
    """Acts before and after the rest of the way; it may answer by raising a CstpError.

    `request` is an iterator of messages; from Receiving on, it is the message itself where the caller sends one only.
    Any message may be Undecodable until validation.
    """

    def __call__(self, call: Call, request: Any, proceed: Proceed) -> Any:
        """Return what `proceed` returns."""


class Messages(Protocol):
    """Reads the messages of unary calls."""

    def message(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Return the one message of a call. Raises CstpError where there is none, or none in time."""


class Answers(Protocol):
    """Sends the answers of methods that answer with a stream."""

    def ending(self, servicer: Callable[[Any, grpc.ServicerContext], Iterator[Any]]) -> Proceed:
        """Return the end of the way: the servicer, and the sending of what it returns."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Threads beside those of the contract's unary calls, so that nobody can hold those."""

    streams: ThreadPoolExecutor
    """For streams that callers of the contract send, each of which holds a thread as long as it is open."""
    answers: ThreadPoolExecutor
    """For streams that the contract answers with, likewise."""
    open_streams: ThreadPoolExecutor
    """For streams of other services, which are open to strangers."""
    open_calls: ThreadPoolExecutor
    """For unary calls of other services."""


class Chain(grpc.ServerInterceptor):
    """Puts the interceptors, the first outermost, around every method of the contract.

    To gRPC every method takes a stream: it would else wait for the message of a unary call on one of our threads, as
    long as the caller likes, before anybody has asked who that is. A handler is built once, at the first call of its
    method.
    """

    def __init__(
        self,
        interceptors: Sequence[Interceptor],
        methods: Mapping[str, Method],
        messages: Messages,
        answers: Answers,
        pools: Pools,
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._methods = {method.path: method for method in methods.values()}
        self._messages = messages
        self._answers = answers
        self._pools = pools
        self._handlers: dict[str, Handler] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the handler of a method with the interceptors around it."""
        path = handler_call_details.method
        if known := self._handlers.get(path):
            return known
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = self._methods.get(path)
        return self._handlers.setdefault(path, self._around(handler, method) if method else self._beside(handler))

    def _around(self, handler: Handler, method: Method) -> Handler:
        """Return the handler of a method of the contract."""
        servicer = servicer_of(handler)
        proceed = self._answers.ending(servicer) if method.server_streaming else ending(servicer)
        for interceptor in reversed(self._interceptors):
            proceed = following(interceptor, proceed)

        def behavior(
            requests: Iterator[Any], context: grpc.ServicerContext, send: Callable[[Any], None] | None = None
        ) -> Any:
            sent = context.invocation_metadata()
            return proceed(Call(method, context, dict(sent), send, find_repeated_keys(sent)), requests)

        if method.streaming:
            behavior.experimental_thread_pool = (  # type: ignore[attr-defined]
                self._pools.answers if method.server_streaming else self._pools.streams
            )
        # To gRPC this means that it is given a function that sends, in the stead of an iterator that it would leave
        # unclosed.
        behavior.experimental_non_blocking = method.server_streaming  # type: ignore[attr-defined]
        return taking_stream(handler)(behavior, tolerant(handler.request_deserializer), deterministic)

    def _beside(self, handler: Handler) -> Handler:
        """Return the handler of a method of another service, which no interceptors are around."""
        inner = servicer_of(handler)
        alone = not handler.request_streaming

        def behavior(requests: Iterator[Any], context: grpc.ServicerContext, *send: Callable[[Any], None]) -> Any:
            return inner(self._only(requests, context) if alone else requests, context, *send)

        behavior.experimental_thread_pool = (  # type: ignore[attr-defined]
            self._pools.open_calls if alone else self._pools.open_streams
        )
        behavior.experimental_non_blocking = getattr(  # type: ignore[attr-defined]
            inner, "experimental_non_blocking", False
        )
        return taking_stream(handler)(behavior, handler.request_deserializer, handler.response_serializer)

    def _only(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Return the message of a unary call, or end the call."""
        try:
            return self._messages.message(requests, context)
        except CstpError as error:
            status = to_status(error, request_id="")
            return context.abort(status.code, status.details)


def servicer_of(handler: Handler) -> Callable[..., Any]:
    """Return what a handler calls."""
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert found is not None, "the handler has no servicer"
    return found


def taking_stream(handler: Handler) -> Callable[..., Handler]:
    """Return what builds a handler that takes a stream and answers as another one does."""
    return grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler


def ending(servicer: Callable[[Any, grpc.ServicerContext], Any]) -> Proceed:
    """Return the end of the way, the servicer."""
    return lambda call, request: servicer(request, call.context)


def following(interceptor: Interceptor, proceed: Proceed) -> Proceed:
    """Return `proceed` with one more interceptor before it."""
    return lambda call, request: interceptor(call, request, proceed)


def find_repeated_keys(metadata: Sequence[tuple[str, str | bytes]]) -> frozenset[str]:
    """Return the keys that metadata holds more than once."""
    keys = [key for key, _ in metadata]
    if len(set(keys)) == len(keys):
        return frozenset()
    return frozenset(key for key in keys if keys.count(key) > 1)


def deterministic(message: Message) -> bytes:
    """Return the bytes of a message, the same ones for equal messages."""
    return message.SerializeToString(deterministic=True)


def tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Return a deserializer that yields Undecodable where gRPC itself would answer with a bare INTERNAL."""
    assert deserialize is not None, "methods of the contract have deserializers"

    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:  # noqa: BLE001 - what protobuf raises differs between its implementations
            return Undecodable()

    return decode
