"""What is open to strangers over gRPC: health and reflection, each with streams that may be held open for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from a2a.utils.errors import InvalidParamsError
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from bridge.a2a.arrival import LATE, USUAL_SECONDS, Arrival, Context
from cstp_grpc.reflection import SymbolPool


class Places:
    """Bounds how many streams are open at once, so that strangers take nobody's place."""

    def __init__(self, most: int) -> None:
        self._left = most

    @asynccontextmanager
    async def taken(self, context: Context) -> AsyncIterator[None]:
        """Hold a place for the length of a block, or end the call with RESOURCE_EXHAUSTED where there is none."""
        if not self._left:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many such streams are open; try again later")
        self._left -= 1
        try:
            yield
        finally:
            self._left += 1


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """Tells whether the services answer."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return a handler of every rpc of the service."""
        encode = health_pb2.HealthCheckResponse.SerializeToString
        rpcs: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=encode),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=encode),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, rpcs)

    async def _check(self, _: AsyncIterator[bytes], context: Context) -> health_pb2.HealthCheckResponse:
        """Tell it once."""
        return await self.Check(await asked(context), context)

    async def _watch(self, _: AsyncIterator[bytes], context: Context) -> None:
        """Tell it whenever it changes."""
        request = await asked(context)
        async with self._places.taken(context):
            await self.Watch(request, context)


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Shows the contract of the named services."""

    def __init__(self, names: Iterable[str], places: Places) -> None:
        super().__init__(names, SymbolPool())
        self._places = places

    async def ServerReflectionInfo(  # noqa: N802
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answer questions about it."""
        async with (
            self._places.taken(context),
            aclosing(super().ServerReflectionInfo(requests, context)) as answers,
        ):
            async for answer in answers:
                yield answer


async def asked(context: Context) -> health_pb2.HealthCheckRequest:
    """Return what a call asks for, or end it where that does not come or is nothing to ask for."""
    try:
        data = await Arrival(context).within(USUAL_SECONDS)
        if data is None:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, LATE)
        return health_pb2.HealthCheckRequest.FromString(data)
    except (InvalidParamsError, DecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request cannot be decoded")
