"""Health and reflection, which need no token, with limits so that strangers cannot block them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.contract.errors import CstpError, DeadlineExceeded, InvalidArgument
from cstp_grpc.server.call_handlers import RegisteredHandlers, parse_message
from cstp_grpc.server.interceptors.admission import Context, OpenStreams, WaitingCalls
from cstp_grpc.server.interceptors.error_status import to_status

MAX_WAITING_CALLS: Final = 256
"""Maximum number of calls that wait for messages. Chosen: each costs some kilobytes, and none needs a token."""
MAX_OPEN_STREAMS: Final = 1000
"""Maximum number of open streams, beyond which the oldest is closed. Each client that balances over servers watches the
health of each.
"""
STREAM_IDLE_SECONDS: Final = 60.0
"""How long a stream may go without a request. Chosen: people with reflection tools pause between two."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class OpenHandlers(grpc.GenericRpcHandler):
    """Serves methods without authentication, by async servicers; messages must arrive within `message_seconds`."""

    def __init__(self, registered: RegisteredHandlers, message_seconds: float, streams: OpenStreams) -> None:
        self._registered = registered
        self._message_seconds = message_seconds
        self._streams = streams
        self._waiting = WaitingCalls(MAX_WAITING_CALLS)
        self._handlers: dict[str, Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        path = handler_call_details.method
        if known := self._handlers.get(path):
            return known
        handler = self._registered.find(path)
        return None if handler is None else self._handlers.setdefault(path, self._build_handler(handler))

    def _build_handler(self, handler: Handler) -> Handler:
        decode: Any = handler.request_deserializer
        if function := handler.unary_unary:
            return self._build_unary_handler(function, decode, handler.response_serializer)
        # The stubs know synchronous servicers only.
        watch: Any = handler.unary_stream
        converse: Any = handler.stream_stream

        async def stream(_: object, context: Context) -> None:
            try:
                with self._streams.track():
                    if watch:
                        await watch(await self._receive_one(context, decode), context)
                        return
                    async for answer in converse(self._receive_each(context, decode), context):
                        await context.write(answer)
                return
            except CstpError as error:
                status = to_status(error, request_id="")
            await context.abort_with_status(status)

        return grpc.stream_stream_rpc_method_handler(stream, response_serializer=handler.response_serializer)

    def _build_unary_handler(
        self, function: Callable[..., Any], decode: Callable[[bytes], Any], encode: Any
    ) -> Handler:
        async def answer(_: object, context: Context) -> Any:
            try:
                request = await self._receive_one(context, decode)
            except CstpError as error:
                status = to_status(error, request_id="")
                await context.abort_with_status(status)
            return await function(request, context)

        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=encode)

    async def _receive_one(self, context: Context, decode: Callable[[bytes], Any]) -> Any:
        """Return the message of a call. Raises InvalidArgument, DeadlineExceeded."""
        data = await self._receive(context, self._message_seconds)
        if data is None:
            raise InvalidArgument("The method takes one message, and none was sent")
        return parse_message(decode, data)

    async def _receive_each(self, context: Context, decode: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        """Yield the messages of a stream. Raises InvalidArgument, DeadlineExceeded."""
        while (data := await self._receive(context, STREAM_IDLE_SECONDS)) is not None:
            yield parse_message(decode, data)

    async def _receive(self, context: Context, seconds: float) -> bytes | None:
        """Return the next message, or None after the last. Raises DeadlineExceeded, also if evicted for another."""
        try:
            async with asyncio.timeout(seconds) as limit:
                with self._waiting.add(limit):
                    data = await context.read()
        except TimeoutError:
            raise DeadlineExceeded("No message arrived in time") from None
        return None if data is grpc.aio.EOF else data


SEARCH_HEALTH: Final = "search"
"""The name of the search engine in the health service, if servers share one: serving once it has the whole journal."""
RULEBOOK_HEALTH: Final = "rulebooks"
"""The name of the rulebooks in the health service: not serving while those of the files cannot be loaded."""

ServingStatus = Any
"""A health_pb2.HealthCheckResponse.ServingStatus; it comes without types."""

SERVING: ServingStatus = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: ServingStatus = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN: ServingStatus = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it comes without types
    """Serves grpc.health.v1.Health; `details` returns by name whether a component is healthy now.

    For one event loop. Unlike gRPC's own servicer it does not send while it holds the lock for changes of status, so
    that a watcher that does not read blocks nobody.
    """

    def __init__(self, details: Mapping[str, Callable[[], bool]]) -> None:
        self._details = dict(details)
        self._statuses: dict[str, ServingStatus] = {"": SERVING}
        # No lock for these: statuses change and watches run on one event loop (`report_failure` calls into it).
        self._changes: set[asyncio.Event] = set()
        """An event for each watch, set when a status changes."""
        self._stopping = False

    async def Check(  # noqa: N802 - the generated name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        detail = self._details.get(request.service)
        status = self._status(request.service) if detail is None else SERVING if detail() else NOT_SERVING
        if status == UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 - the generated name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> None:
        """Send the status of the server or a service, now and at every change."""
        changed = asyncio.Event()
        self._changes.add(changed)
        last_sent: ServingStatus = None
        try:
            while True:
                # Cleared before the status is read: a change while it is sent sets it again.
                changed.clear()
                status = self._status(request.service)
                if status != last_sent:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    last_sent = status
                await changed.wait()
        finally:
            self._changes.discard(changed)

    def set_status(self, service: str, status: ServingStatus) -> None:
        """Set the status of a service, unless the server is stopping or has failed."""
        if not self._stopping:
            self._statuses[service] = status
            self._notify()

    def enter_graceful_shutdown(self) -> None:
        self._stopping = True
        self._statuses = dict.fromkeys(self._statuses, NOT_SERVING)
        self._notify()

    def fail(self) -> None:
        """Set all services to NOT_SERVING for good, because the server must be restarted."""
        self.enter_graceful_shutdown()

    def _notify(self) -> None:
        for changed in self._changes:
            changed.set()

    def _status(self, service: str) -> ServingStatus:
        return self._statuses.get(service, UNKNOWN)
