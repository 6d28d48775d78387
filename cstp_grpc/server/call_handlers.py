"""The way of a call of the contract, from its metadata to its answer.

Metadata comes first, so that a stranger, or a caller without the permission, is refused before a byte of its message is
read. A call that waits for its message costs memory and no thread; how many do so, and how long, is bounded.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from cstp_grpc.client.contract import Method, methods
from cstp_grpc.errors import DeadlineExceeded, InvalidArgument
from cstp_grpc.server.interceptors.call import AdmissionStep, Call, Context, find_repeated_keys
from cstp_grpc.server.interceptors.calls_in_progress import CallsInProgress
from cstp_grpc.server.interceptors.errors import ErrorAnswers
from cstp_grpc.server.interceptors.request_id import REQUEST_ID, choose_request_id
from cstp_grpc.server.interceptors.validation import Validation
from cstp_grpc.server.lanes import SHORT, Lanes
from cstp_grpc.server.open_streams import OpenStreams

logger = logging.getLogger(__name__)

T = TypeVar("T")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

Servicer: TypeAlias = tuple[Callable[[Any, grpc.Server], None], object]
"""The generated function that adds a servicer to a server, and the servicer."""

LARGE_BYTES: Final = 16_384
"""Bytes from which on a message may take milliseconds to read, which is too long for the event loop."""

Answering: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""Answers a request: a message, or an asynchronous generator of them for methods that answer with a stream."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """What holds for all calls: who is let in, how long messages may take, what errors become."""

    admission: Sequence[AdmissionStep]
    in_progress: CallsInProgress
    validation: Validation
    errors: ErrorAnswers
    message_seconds: float


class CallHandlers(grpc.GenericRpcHandler):
    """Serves all methods of the contract that the servicers have.

    To gRPC every method takes a stream of bytes and answers with bytes: it would else read and convert the message of a
    unary call before anybody has asked whose it is.
    """

    def __init__(self, servicers: Iterable[Servicer], policy: CallPolicy, lanes: Lanes, streams: OpenStreams) -> None:
        self._policy = policy
        self._lanes = lanes
        self._streams = streams
        registered = RegisteredHandlers(servicers)
        self._handlers = {
            method.path: self._serve(method, handler)
            for method in methods().values()
            if (handler := registered.find(method.path))
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a method of the contract."""
        return self._handlers.get(handler_call_details.method)

    def _serve(self, method: Method, handler: Handler) -> Handler:
        answering = self._answering(method, servicer_of(handler))
        if method.server_streaming:

            async def stream(_: object, context: Context) -> None:
                await self._stream(method, answering, context)

            return grpc.stream_stream_rpc_method_handler(stream)

        async def answer(_: object, context: Context) -> bytes:
            return await self._answer(method, answering, context)

        return grpc.stream_unary_rpc_method_handler(answer)

    def _answering(self, method: Method, function: Callable[..., Any]) -> Answering:
        """Return what runs a servicer's function: on the loop if it is asynchronous or short, else on a thread."""
        if inspect.iscoroutinefunction(function):
            return function
        if method.name in SHORT:

            async def compute(request: Any, context: Context) -> Any:
                return function(request, context)

            return compute
        lane = self._lanes.of_method(method.name)
        return lambda request, context: lane.run(function, request, context)

    async def _answer(self, method: Method, answering: Answering, context: Context) -> bytes:
        """Return the answer of a call as bytes, or end it with the status of its error."""
        call = begin_call(method, context)
        try:
            self._admit(call)
            with self._policy.in_progress.count(call.agent or ""):
                request = self._receive_each(call) if method.client_streaming else await self._receive(call)
                response = await answering(request, context)
                return serialize(response)
        except asyncio.CancelledError:
            log_departure(call)
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            status = self._policy.errors.describe(call, error)
        return await context.abort_with_status(status)

    async def _stream(self, method: Method, answering: Answering, context: Context) -> None:
        """Send the answers of a call as they come, or end it with the status of its error.

        That a caller is let in it is told at once by the initial metadata: they have the request id, which those of a
        refused call lack.
        """
        call = begin_call(method, context)
        try:
            self._admit(call)
            with self._policy.in_progress.count(call.agent or ""):
                request = await self._receive(call)
            with self._streams.track():
                async with aclosing(await answering(request, context)) as answers:
                    await context.send_initial_metadata(((REQUEST_ID, call.request_id),))
                    async for answer in answers:
                        await context.write(serialize(answer))
            return
        except asyncio.CancelledError:
            log_departure(call)
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            status = self._policy.errors.describe(call, error)
        await context.abort_with_status(status)

    def _admit(self, call: Call) -> None:
        for judge in self._policy.admission:
            judge(call)

    async def _receive(self, call: Call) -> Message:
        """Return the one message of a call. Raises InvalidArgument, also where none is sent, and DeadlineExceeded."""
        data = await receive_bytes(call.context, self._policy.message_seconds)
        if data is None:
            raise InvalidArgument("The method takes one message, and none was sent")
        if len(data) <= LARGE_BYTES:
            return self._read_message(call.method, data)
        lane = self._lanes.of_method(call.method.name)
        message = await lane.run(self._read_message, call.method, data)
        # What the servicer makes of it takes long too, so that others get their turn between two of them.
        await lane.take_turn()
        return message

    def _read_message(self, method: Method, data: bytes) -> Message:
        """Return bytes as a valid message. Raises InvalidArgument."""
        message = parse_message(method.request.FromString, data)
        self._policy.validation.judge(message)
        return message

    async def _receive_each(self, call: Call) -> AsyncIterator[Message]:
        """Yield the messages of a stream. Raises as `_receive` does, with the number of the message."""
        number = 0
        while (data := await receive_bytes(call.context, self._policy.message_seconds)) is not None:
            if len(data) <= LARGE_BYTES:
                yield self._read_numbered(call.method, data, number)
            else:
                lane = self._lanes.of_method(call.method.name)
                yield await lane.run(self._read_numbered, call.method, data, number)
            number += 1

    def _read_numbered(self, method: Method, data: bytes, number: int) -> Message:
        """Return the bytes of a stream's message as a valid one. Raises InvalidArgument with its number."""
        message = parse_message(method.request.FromString, data)
        self._policy.validation.judge_numbered(message, number)
        return message


class RegisteredHandlers:
    """What the generated functions register, which take it for a server."""

    def __init__(self, servicers: Iterable[Servicer]) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []
        for add, servicer in servicers:
            add(servicer, self)  # type: ignore[arg-type]

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Keep handlers."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Keep nothing: the same handlers come as generic ones too."""

    def find(self, path: str) -> Handler | None:
        """Return the handler of a method; None if no servicer has it."""
        details = PathDetails(path)
        return next(filter(None, (each.service(details) for each in self._handlers)), None)


class PathDetails(grpc.HandlerCallDetails):
    """Names a method when there is no call of it."""

    def __init__(self, path: str) -> None:
        self.method = path
        self.invocation_metadata = ()


def servicer_of(handler: Handler) -> Callable[..., Any]:
    """Return the servicer's function that a handler calls."""
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert found is not None, "the handler has no servicer"
    return found


def begin_call(method: Method, context: Context) -> Call:
    """Return a call as its metadata tells it; its answer will carry the request id."""
    sent: Any = context.invocation_metadata()
    metadata = dict(sent)
    repeated = find_repeated_keys(sent) if len(metadata) < len(sent) else frozenset()
    request_id = choose_request_id(metadata.get(REQUEST_ID))
    context.set_trailing_metadata(((REQUEST_ID, request_id),))
    return Call(method, context, request_id, metadata, repeated)


async def receive_bytes(context: Context, seconds: float) -> bytes | None:
    """Return the next message of a call, or None after the last. Raises DeadlineExceeded after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            data = await context.read()
    except TimeoutError:
        raise DeadlineExceeded(f"No message arrived within {seconds:g} s") from None
    return None if data is grpc.aio.EOF else data


def parse_message(decode: Callable[[bytes], T], data: bytes) -> T:
    """Return bytes as the message that a method takes. Raises InvalidArgument."""
    try:
        return decode(data)
    except Exception as error:  # what protobuf raises differs between its implementations
        raise InvalidArgument("The request cannot be decoded as the message that the method takes") from error


def serialize(message: Message) -> bytes:
    """Return the bytes of a message, the same ones for equal messages."""
    return message.SerializeToString(deterministic=True)


def log_departure(call: Call) -> None:
    """Say that a caller ended its call."""
    logger.info("%s %s: ended by its caller agent=%s", call.request_id, call.method.name, call.agent or "-")
