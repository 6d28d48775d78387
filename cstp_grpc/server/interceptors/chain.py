"""How interceptors of ours are put around a method of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc

from cstp_grpc.client.contract import Method


@dataclass(slots=True)
class Call:
    """One call on its way through the interceptors; `request_id` is set by the first of them."""

    method: Method
    context: grpc.ServicerContext
    metadata: Mapping[str, str | bytes]
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

    `request` is a message, for client streams an iterator of them; either may be Undecodable until validation.
    """

    def __call__(self, call: Call, request: Any, proceed: Proceed) -> Any:
        """Return what `proceed` returns."""


class Chain(grpc.ServerInterceptor):
    """Puts the interceptors, the first outermost, around every method of the contract.

    Streams run on pools of their own, because each holds a thread as long as it is open: those of the contract on
    `streams`, those of other services, which are open to strangers, on `open_streams`. A handler is built once, at the
    first call of its method.
    """

    def __init__(
        self,
        interceptors: Sequence[Interceptor],
        methods: Mapping[str, Method],
        streams: ThreadPoolExecutor,
        open_streams: ThreadPoolExecutor,
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._methods = {method.path: method for method in methods.values()}
        self._streams = streams
        self._open_streams = open_streams
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
        built = self._around(handler, method) if method else handler
        if built.request_streaming or built.response_streaming:
            built = streaming(built, self._streams if method else self._open_streams)
        return self._handlers.setdefault(path, built)

    def _around(self, handler: Handler, method: Method) -> Handler:
        servicer = handler.stream_unary if method.client_streaming else handler.unary_unary
        assert servicer is not None, f"{method.path} has no servicer"
        proceed = ending(servicer)
        for interceptor in reversed(self._interceptors):
            proceed = following(interceptor, proceed)

        def behavior(request: Any, context: grpc.ServicerContext) -> Any:
            return proceed(Call(method, context, dict(context.invocation_metadata())), request)

        build = grpc.stream_unary_rpc_method_handler if method.client_streaming else grpc.unary_unary_rpc_method_handler
        return build(behavior, tolerant(handler.request_deserializer), handler.response_serializer)


def streaming(handler: Handler, pool: ThreadPoolExecutor) -> Handler:
    """Return a streaming handler that runs on a pool, unless it holds no thread anyway."""
    kind, build = {
        (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
        (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
        (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
    }[handler.request_streaming, handler.response_streaming]
    inner = getattr(handler, kind)
    if getattr(inner, "experimental_non_blocking", False):
        return handler

    def behavior(request: Any, context: grpc.ServicerContext) -> Any:
        return inner(request, context)

    behavior.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return build(behavior, handler.request_deserializer, handler.response_serializer)


def ending(servicer: Callable[[Any, grpc.ServicerContext], Any]) -> Proceed:
    """Return the end of the way, the servicer."""
    return lambda call, request: servicer(request, call.context)


def following(interceptor: Interceptor, proceed: Proceed) -> Proceed:
    """Return `proceed` with one more interceptor before it."""
    return lambda call, request: interceptor(call, request, proceed)


def tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Return a deserializer that yields Undecodable where gRPC itself would answer with a bare INTERNAL."""
    assert deserialize is not None, "methods of the contract have deserializers"

    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:  # noqa: BLE001 - what protobuf raises differs between its implementations
            return Undecodable()

    return decode
