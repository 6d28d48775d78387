"""What is open to strangers over gRPC: health and reflection, each with streams that may be held open for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

Context = grpc.aio.ServicerContext[Any, Any]


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

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802
        """Tell it whenever it changes."""
        async with self._places.taken(context):
            await super().Watch(request, context)


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Shows the contract of the named services."""

    def __init__(self, names: Iterable[str], places: Places) -> None:
        super().__init__(names)
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
