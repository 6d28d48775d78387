"""Forwards calls to the gRPC server: every unary method of the contract, without code for any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import Message

from bridge.status import UNFORESEEN, Failure, failure_from_rpc, summary, violations
from cstp_grpc.client.codec import CodecError, from_json, json_path, to_json
from cstp_grpc.client.contract import Method
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY

Metadata = Sequence[tuple[str, str]]

REQUEST_ID_FIELD: Final = "request_id"
"""By this field of a request, chosen by its caller, a method knows a repetition."""
MALFORMED: Final = b"\xff"
"""The beginning of a field's number, which decodes as no message."""


class Invoke(Protocol):
    """Sends a message of one method."""

    def __call__(self, request: Message, *, timeout: float, metadata: Metadata) -> Awaitable[Message]:
        """Return the answer. Raises grpc.aio.AioRpcError."""
        ...


class ServerStream(Protocol):
    """A call that is answered with a stream of messages."""

    async def initial_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return the metadata before the first message; those of an admitted call have its request id."""
        ...

    def cancel(self) -> bool:
        """End the call."""
        ...

    def __aiter__(self) -> AsyncIterator[Message]:
        """Return the messages as they come. Raises grpc.aio.AioRpcError."""
        ...


OpenStream = Callable[..., ServerStream]
"""Opens a call of one method: takes the request, and `metadata` by name."""


class InvokeMalformed(Protocol):
    """Sends bytes that are no message of one method."""

    def __call__(self, request: bytes, *, timeout: float, metadata: Metadata) -> Awaitable[Message]:
        """Raises grpc.aio.AioRpcError, always."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """A method and how it is called: `invoke` for unary methods, `open` for those that answer with a stream.

    `invoke_malformed` sends bytes that are no message, for the server to refuse.
    """

    method: Method
    invoke: Invoke | None = None
    open: OpenStream | None = None
    invoke_malformed: InvokeMalformed | None = None


class Forwarder:
    """Calls the methods of the contract on a channel.

    `timeout` is in seconds, for each call.
    """

    def __init__(self, channel: grpc.aio.Channel, methods: Mapping[str, Method], timeout: float) -> None:
        self._timeout = timeout
        self._routes = {name: route_of(channel, method) for name, method in methods.items() if method.public}

    @property
    def names(self) -> Collection[str]:
        """The JSON-RPC names of all methods."""
        return self._routes.keys()

    def is_repeatable(self, name: str, params: Mapping[str, object]) -> bool:
        """Whether a call that is made twice changes no more than one; a method that there is none of changes nothing.

        One that knows repetitions by a request id is repeatable with such an id only.
        """
        route = self._routes.get(name)
        if route is None:
            return True
        method = route.method
        needs_id = REQUEST_ID_FIELD in method.request.DESCRIPTOR.fields_by_name
        return method.idempotent and not (needs_id and params.get(json_path(method.request, REQUEST_ID_FIELD)) is None)

    def intent_type(self, name: str) -> str:
        """Return the intent that failures of a method name; empty where they name none."""
        route = self._routes.get(name)
        return route.method.intent_type if route else ""

    async def call(self, name: str, params: dict[str, object] | list[object], metadata: Metadata) -> dict[str, Any]:
        """Return the JSON result of a method. Raises Failure."""
        route = self._routes.get(name)
        if route is None:
            raise Failure("METHOD_NOT_FOUND", "Method not found")
        if route.invoke is None:
            detail = f"{name} takes or answers a stream and can only be called over gRPC"
            raise Failure("METHOD_NOT_FOUND", "Method not found", details={"detail": detail})
        request = await self._read(route, params, metadata)
        try:
            answer = await route.invoke(request, timeout=self._timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise failure_from_rpc(error, route.method.request) from error
        return to_json(answer)

    async def open_stream(
        self, name: str, params: dict[str, object], metadata: Metadata
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Return the JSON results of a method that answers with a stream, once the server has admitted the call.

        Closing the generator ends the call. Raises Failure, and so does the generator.
        """
        route = self._routes[name]
        assert route.open is not None, f"{name} does not answer with a stream"
        request = await self._read(route, params, metadata)
        call = route.open(request, metadata=metadata)
        results = read_stream(call, route.method)
        try:
            async with asyncio.timeout(self._timeout):
                admitted = dict(await call.initial_metadata())
                if REQUEST_ID_KEY not in admitted:
                    # A refused call has no messages: asking for one raises the reason.
                    await anext(results, None)
        except TimeoutError as error:
            call.cancel()
            raise Failure("DEADLINE_EXCEEDED", "The server did not answer in time") from error
        except BaseException:
            call.cancel()
            raise
        return results

    async def _read(self, route: Route, params: dict[str, object] | list[object], metadata: Metadata) -> Message:
        """Return the request of a call. Raises Failure, what the server thinks of the caller before what is wrong."""
        try:
            return read_params(params, route.method.request)
        except Failure as failure:
            raise failure from await self._refusal(route, metadata)

    async def _refusal(self, route: Route, metadata: Metadata) -> grpc.aio.AioRpcError:
        """Return with what the server refuses a call whose params are no message of its method.

        So the caller is judged first, and the refusal counts for limits and in the audit trail as one over gRPC does.
        Raises Failure if the server has another reason to refuse it than that.
        """
        assert route.invoke_malformed is not None, "methods that take a stream have no params"
        try:
            await route.invoke_malformed(MALFORMED, timeout=self._timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise failure_from_rpc(error, route.method.request) from error
            return error
        raise Failure(*UNFORESEEN)


def route_of(channel: grpc.aio.Channel, method: Method) -> Route:
    """Return how a method is called; one that takes a stream is not."""
    if method.client_streaming:
        return Route(method)
    # An error needs no message of the answer, so a method that answers with a stream can be called like a unary one.
    malformed: InvokeMalformed = channel.unary_unary(method.path, response_deserializer=method.response.FromString)
    if method.server_streaming:
        stream = channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return Route(method, open=stream, invoke_malformed=malformed)
    unary = channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    return Route(method, invoke=unary, invoke_malformed=malformed)


async def read_stream(call: ServerStream, method: Method) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the JSON results of a call. Raises Failure."""
    try:
        async for answer in call:
            yield to_json(answer)
    except grpc.aio.AioRpcError as error:
        raise failure_from_rpc(error, method.request) from error
    finally:
        call.cancel()


def read_params(params: dict[str, object] | list[object], request: type[Message]) -> Message:
    """Return the request that the params of a call describe. Raises Failure."""
    if isinstance(params, list):
        raise Failure("INVALID_ARGUMENT", "params must be an object: the methods take their parameters by name")
    try:
        return from_json(params, request)
    except CodecError as error:
        found = [(item.field, item.description) for item in error.violations]
        raise Failure("INVALID_ARGUMENT", summary(found), details={"violations": violations(found)}) from error
