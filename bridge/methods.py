"""Forwards calls to the gRPC server: every unary method of the contract, without code for any of them."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import Message

from bridge.status import Failure, from_rpc_error, summary, violations
from cstp_grpc.client.codec import CodecError, from_json, json_path, to_json
from cstp_grpc.client.contract import Method

Metadata = Sequence[tuple[str, str]]

REQUEST_ID_FIELD: Final = "request_id"
"""By this field of a request, chosen by its caller, a method knows a repetition."""


class Invoke(Protocol):
    """Sends a message of one method."""

    def __call__(self, request: Message, *, timeout: float, metadata: Metadata) -> Awaitable[Message]:
        """Return the answer. Raises grpc.aio.AioRpcError."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """A method and how it is called; None where it streams."""

    method: Method
    invoke: Invoke | None


class Forwarder:
    """Calls the methods of the contract on a channel.

    `timeout` is in seconds, for each call.
    """

    def __init__(self, channel: grpc.aio.Channel, methods: Mapping[str, Method], timeout: float) -> None:
        self._timeout = timeout
        self._routes = {
            name: Route(method, None if method.streaming else invoker(channel, method))
            for name, method in methods.items()
            if method.public
        }

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
        request = read_params(params, route.method.request)
        try:
            answer = await route.invoke(request, timeout=self._timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, route.method.request) from error
        return to_json(answer)


def invoker(channel: grpc.aio.Channel, method: Method) -> Invoke:
    """Return what calls a unary method."""
    return channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


def read_params(params: dict[str, object] | list[object], request: type[Message]) -> Message:
    """Return the request that the params of a call describe. Raises Failure."""
    if isinstance(params, list):
        raise Failure("INVALID_ARGUMENT", "params must be an object: the methods take their parameters by name")
    try:
        return from_json(params, request)
    except CodecError as error:
        found = [(item.field, item.description) for item in error.violations]
        raise Failure("INVALID_ARGUMENT", summary(found), details={"violations": violations(found)}) from error
