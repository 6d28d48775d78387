"""Serving what needs no token, health and reflection, so that strangers can keep nobody from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeAlias

import grpc

from cstp_grpc.errors import CstpError, DeadlineExceeded, InvalidArgument
from cstp_grpc.server.call_handlers import RegisteredHandlers, parse_message
from cstp_grpc.server.interceptors.call import Context
from cstp_grpc.server.interceptors.calls_in_progress import WaitingCalls
from cstp_grpc.server.open_streams import OpenStreams
from cstp_grpc.server.status import to_status

MOST_WAITING: Final = 256
"""How many calls may wait for messages at once; each costs some kilobytes."""
MOST_STREAMS: Final = 1000
"""How many streams may be open at once, of which the oldest makes room for a new one. Each client that chooses among
servers watches the health of each."""
IDLE_SECONDS: Final = 60.0
"""How long a stream may go without a question; tools that ask by hand pause between two."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class OpenHandlers(grpc.GenericRpcHandler):
    """Serves methods that are open to everyone, by asynchronous servicers; their messages have `message_seconds`."""

    def __init__(self, registered: RegisteredHandlers, message_seconds: float, streams: OpenStreams) -> None:
        self._registered = registered
        self._message_seconds = message_seconds
        self._streams = streams
        self._waiting = WaitingCalls(MOST_WAITING)
        self._handlers: dict[str, Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a method."""
        path = handler_call_details.method
        if known := self._handlers.get(path):
            return known
        handler = self._registered.find(path)
        return None if handler is None else self._handlers.setdefault(path, self._serve(handler))

    def _serve(self, handler: Handler) -> Handler:
        decode: Any = handler.request_deserializer
        if function := handler.unary_unary:
            return self._serve_unary(function, decode, handler.response_serializer)
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

    def _serve_unary(self, function: Callable[..., Any], decode: Callable[[bytes], Any], encode: Any) -> Handler:
        async def answer(_: object, context: Context) -> Any:
            try:
                request = await self._receive_one(context, decode)
            except CstpError as error:
                status = to_status(error, request_id="")
                await context.abort_with_status(status)
            return await function(request, context)

        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=encode)

    async def _receive_one(self, context: Context, decode: Callable[[bytes], Any]) -> Any:
        """Return the one message of a call. Raises InvalidArgument, DeadlineExceeded."""
        data = await self._receive(context, self._message_seconds)
        if data is None:
            raise InvalidArgument("The method takes one message, and none was sent")
        return parse_message(decode, data)

    async def _receive_each(self, context: Context, decode: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        """Yield the messages of a stream. Raises InvalidArgument, DeadlineExceeded."""
        while (data := await self._receive(context, IDLE_SECONDS)) is not None:
            yield parse_message(decode, data)

    async def _receive(self, context: Context, seconds: float) -> bytes | None:
        """Return the next message; None after the last. Raises DeadlineExceeded, also to make room for other calls."""
        try:
            async with asyncio.timeout(seconds) as limit:
                with self._waiting.add(limit):
                    data = await context.read()
        except TimeoutError:
            raise DeadlineExceeded("No message arrived in time") from None
        return None if data is grpc.aio.EOF else data
