"""Handlers for the calls of the contract, from metadata to response.

Metadata is checked first, so that unauthenticated or unauthorized calls are refused before a byte of their message is
read. A call that waits for its message costs memory and no thread; count and duration of such waits are bounded.
The message is validated here, so that no other module checks the shape of requests.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import AuthenticationRequired, DeadlineExceeded, InvalidArgument, drop_tracebacks
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY
from cstp_grpc.contract.task_ids import NEW_TASK_METADATA_KEY
from cstp_grpc.server.execution import SHORT_METHODS, CallPools
from cstp_grpc.server.interceptors.admission import (
    AdmissionStep,
    CallsInProgress,
    Context,
    InboundCall,
    OpenStreams,
    choose_request_id,
    find_repeated_keys,
)
from cstp_grpc.server.interceptors.error_status import ErrorReporter, RichStatus
from cstp_grpc.server.request_validation import RequestValidator, count_values

if TYPE_CHECKING:
    from cstp_grpc.server.interceptors.rate_limits import RateLimiter
    from cstp_grpc.server.interceptors.shared_rate_limits import SharedRateLimiter

logger = logging.getLogger(__name__)


T = TypeVar("T")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

ServicerRegistration: TypeAlias = tuple[Callable[[Any, grpc.Server], None], object]
"""The generated function that registers a servicer, and the servicer."""

LARGE_BYTES: Final = 16_384
"""Message size above which parsing and validation run on a thread. Chosen: below it they take less than a millisecond,
for which the event loop is blocked."""

BYTES_PER_CALL: Final = 16_384
VALUES_PER_CALL: Final = 250
"""Bytes, and values of structured data, for which a call counts as one more call for rate limits. Measured: a small
check takes 1.6 ms, and 250 more values take 0.9 ms."""
MIN_VALUE_BYTES: Final = 2
"""The least bytes of a value in a message."""

OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
"""Names of gRPC statuses. Plain texts, since the name of a member takes a look-up for each call."""

AsyncServicerMethod: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""Handles a request: returns a message, or an async generator of messages for server streaming."""


class CallObserver(Protocol):
    """Observes calls, on their event loop. It must neither block nor raise."""

    def begin(self, call: InboundCall) -> None:
        """Note that a call begins, before it is admitted."""

    def end(self, call: InboundCall, status: str, error: BaseException | None, response: Message | None) -> None:
        """Note how a call ended: the name of its gRPC status, and its error or, unless it is a stream, its response."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """The methods that are served, and the admission, limits, validation and error mapping of all calls."""

    methods: Mapping[str, RpcMethod]
    """By JSON-RPC name."""
    admission: Sequence[AdmissionStep]
    in_progress: CallsInProgress
    validation: RequestValidator
    errors: ErrorReporter
    message_seconds: float
    observers: Sequence[CallObserver] = ()
    shared_limits: SharedRateLimiter | None = None
    """Rate limits that are checked over the network; None if admission counts calls itself."""
    local_limits: RateLimiter | None = None
    """The rate limits by which admission counts calls itself."""
    require_new_task: Callable[[str, str], Awaitable[None]] | None = None
    """Takes an agent and the id of a task, and raises Conflict if the agent has this task; None without tasks."""


class CallHandlers(grpc.GenericRpcHandler):
    """Serves the methods that the servicers implement.

    gRPC sees every method as a stream of bytes: otherwise it would read and parse the message of a unary call before
    admission.
    """

    def __init__(
        self, servicers: Iterable[ServicerRegistration], policy: CallPolicy, pools: CallPools, streams: OpenStreams
    ) -> None:
        self._policy = policy
        self._observers = tuple(policy.observers)
        self._pools = pools
        self._streams = streams
        # gRPC sends the status of a stream that ended well itself, and logs if its caller is gone.
        logging.getLogger(GRPC_LOGGER).addFilter(concerns_present_caller)
        registered = RegisteredHandlers(servicers)
        self._handlers = {
            method.path: self._build_handler(method, handler)
            for method in policy.methods.values()
            if (handler := registered.find(method.path))
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        return self._handlers.get(handler_call_details.method)

    def _build_handler(self, method: RpcMethod, handler: Handler) -> Handler:
        answering = self._make_async(method, servicer_function(handler))
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(partial(CallHandlers._handle_stream, self, method, answering))
        # Partials of the plain function, in place of closures: they add no frame to a call, and gRPC recognizes them as
        # coroutine functions.
        return grpc.stream_unary_rpc_method_handler(partial(CallHandlers._handle_unary, self, method, answering))

    def _make_async(self, method: RpcMethod, function: Callable[..., Any]) -> AsyncServicerMethod:
        """Return an async version of a servicer's function: on the loop if it is async or short, else on a thread."""
        if inspect.iscoroutinefunction(function):
            return function
        if method.name in SHORT_METHODS:

            async def compute(request: Any, context: Context) -> Any:
                return function(request, context)

            return compute
        pool = self._pools.for_method(method.name)
        return lambda request, context: pool.run(function, request, context)

    async def _handle_unary(
        self, method: RpcMethod, answering: AsyncServicerMethod, _requests: object, context: Context
    ) -> bytes:
        """Return the serialized response of a call, or abort it with the status of its error."""
        call = begin_call(method, context)
        for observer in self._observers:
            observer.begin(call)
        try:
            # Security: admission sees metadata only. Not a byte of a message is read for a caller that is refused.
            for admit in self._policy.admission:
                admit(call)
            agent = call.agent or ""
            self._policy.in_progress.enter(agent, method.name)
            try:
                if self._policy.shared_limits is not None:
                    await self._policy.shared_limits.admit(call)
                # Not a local: gRPC keeps this frame with the exception of an abort until a garbage collection.
                response = await answering(
                    self._receive_each(call) if method.client_streaming else await self._receive(call), context
                )
                serialized = serialize_message(response)
            finally:
                self._policy.in_progress.leave(agent, method.name)
        except asyncio.CancelledError as error:
            self._end_cancelled(call, error)
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            status = self._end_failed(call, error)
        else:
            for observer in self._observers:
                observer.end(call, OK, None, response)
            return serialized
        return await abort_call(context, status)

    async def _handle_stream(
        self, method: RpcMethod, answering: AsyncServicerMethod, _requests: object, context: Context
    ) -> None:
        """Send the responses of a call as they come, or abort it with the status of its error.

        Initial metadata is sent after admission: it has the request id only if the call was admitted.
        """
        call = begin_call(method, context)
        for observer in self._observers:
            observer.begin(call)
        try:
            for admit in self._policy.admission:
                admit(call)
            agent = call.agent or ""
            self._policy.in_progress.enter(agent, method.name)
            # Counted only until the request is there: an open stream counts in `_streams` instead.
            try:
                if self._policy.shared_limits is not None:
                    await self._policy.shared_limits.admit(call)
                request = await self._receive(call)
            finally:
                self._policy.in_progress.leave(agent, method.name)
            with self._streams.track():
                async with aclosing(await answering(request, context)) as answers:
                    await context.send_initial_metadata(((REQUEST_ID_KEY, call.request_id),))
                    async for answer in answers:
                        require_valid_credential(call)
                        await send_answer(context, answer)
        except asyncio.CancelledError as error:
            self._end_cancelled(call, error)
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            status = self._end_failed(call, error)
        else:
            for observer in self._observers:
                observer.end(call, OK, None, None)
            return
        await abort_call(context, status)

    def _end_failed(self, call: InboundCall, error: Exception) -> RichStatus:
        """Return the status of an error, report it, and free the frames that the error holds."""
        status = self._policy.errors.status_for(call, error)
        for observer in self._observers:
            observer.end(call, status.code.name, error, None)
        drop_tracebacks(error)
        return status

    def _end_cancelled(self, call: InboundCall, error: asyncio.CancelledError) -> None:
        """Log and report that the caller cancelled a call."""
        logger.info("%s %s: ended by its caller agent=%s", call.request_id, call.method.name, call.agent or "-")
        for observer in self._observers:
            observer.end(call, CANCELLED, error, None)

    async def _receive(self, call: InboundCall) -> Message:
        """Return the message of a call.

        Raises InvalidArgument, also if none was sent, DeadlineExceeded, AuthenticationRequired, and Conflict for a task
        that is not new.
        """
        data = await receive_bytes(call.context, self._policy.message_seconds)
        if data is None:
            raise InvalidArgument("The method takes one message, and none was sent")
        # The message may arrive long after the call was admitted.
        require_valid_credential(call)
        # Before it is parsed, which is the most expensive step for an invalid message.
        await self._charge(call, len(data) // BYTES_PER_CALL)
        if len(data) <= LARGE_BYTES:
            message, values = self._read_message(call.method, data)
        else:
            pool = self._pools.for_method(call.method.name)
            message, values = await pool.run(self._read_message, call.method, data)
            # Converting a large message in the servicer also takes long: a turn lets other calls run in between.
            await pool.take_turn()
        await self._charge(call, values // VALUES_PER_CALL)
        task_id = call.metadata.get(NEW_TASK_METADATA_KEY)
        if task_id is not None and self._policy.require_new_task is not None:
            await self._policy.require_new_task(call.agent or "", str(task_id))
        return message

    async def _charge(self, call: InboundCall, count: int) -> None:
        """Count a call by its size as further calls. Raises RateLimited, and Unavailable if it cannot be counted."""
        if not count:
            return
        if self._policy.shared_limits is not None:
            await self._policy.shared_limits.admit(call, count)
        elif self._policy.local_limits is not None:
            self._policy.local_limits(call, count)

    def _read_message(self, method: RpcMethod, data: bytes) -> tuple[Message, int]:
        """Parse and validate a message, and return it and the values in it, or 0 if few. Raises InvalidArgument."""
        message = parse_message(method.request.FromString, data)
        self._policy.validation.validate(message)
        return message, count_values(message) if len(data) >= MIN_VALUE_BYTES * VALUES_PER_CALL else 0

    async def _receive_each(self, call: InboundCall) -> AsyncIterator[Message]:
        """Yield the messages of a stream. Raises like `_receive`, with the number of the message."""
        number = 0
        while (data := await receive_bytes(call.context, self._policy.message_seconds)) is not None:
            require_valid_credential(call)
            if len(data) <= LARGE_BYTES:
                yield self._read_numbered(call.method, data, number)
            else:
                pool = self._pools.for_method(call.method.name)
                yield await pool.run(self._read_numbered, call.method, data, number)
            number += 1

    def _read_numbered(self, method: RpcMethod, data: bytes, number: int) -> Message:
        """Parse and validate a message of a stream. Raises InvalidArgument with its number."""
        message = parse_message(method.request.FromString, data)
        self._policy.validation.validate_numbered(message, number)
        return message


class RegisteredHandlers:
    """Collects handlers from the generated registration functions, in place of a server."""

    def __init__(self, servicers: Iterable[ServicerRegistration]) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []
        for add, servicer in servicers:
            add(servicer, self)  # type: ignore[arg-type]

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing: the same handlers are registered as generic ones."""

    def find(self, path: str) -> Handler | None:
        """Return the handler of a method, or None if no servicer has it."""
        details = PathDetails(path)
        return next(filter(None, (each.service(details) for each in self._handlers)), None)


class PathDetails(grpc.HandlerCallDetails):
    """Call details that only have the path of a method."""

    def __init__(self, path: str) -> None:
        self.method = path
        self.invocation_metadata = ()


def servicer_function(handler: Handler) -> Callable[..., Any]:
    """Return the servicer's function behind a handler."""
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert found is not None, "the handler has no servicer"
    return found


def begin_call(method: RpcMethod, context: Context) -> InboundCall:
    sent: Any = context.invocation_metadata()
    metadata = dict(sent)
    repeated = find_repeated_keys(sent) if len(metadata) < len(sent) else frozenset()
    request_id = choose_request_id(metadata.get(REQUEST_ID_KEY))
    context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
    return InboundCall(method, context, request_id, metadata, repeated)


def require_valid_credential(call: InboundCall) -> None:
    """Raise AuthenticationRequired if the credential of a call was revoked or has expired since it was admitted."""
    if call.is_still_valid is not None and not call.is_still_valid():
        raise AuthenticationRequired("The token is not accepted any more")


class MessageTimeout:
    """Cancels a task that waits too long for a message; as `asyncio.timeout`, in a third of its time."""

    __slots__ = ("has_expired", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.has_expired = False

    def expire(self) -> None:
        self.has_expired = True
        self.task.cancel()

    def take_back(self) -> bool:
        """Return True if only this timeout cancelled the task, and undo the cancellation."""
        return self.has_expired and self.task.uncancel() == 0


async def receive_bytes(context: Context, seconds: float) -> bytes | None:
    """Return the next message of a call, or None after the last. Raises DeadlineExceeded after some seconds."""
    task = asyncio.current_task()
    assert task is not None, "calls are answered by tasks"
    timeout = MessageTimeout(task)
    timer = asyncio.get_running_loop().call_later(seconds, timeout.expire)
    try:
        data = await context.read()
    except asyncio.CancelledError:
        if timeout.take_back():
            raise DeadlineExceeded(f"No message arrived within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
    return None if data is grpc.aio.EOF else data


def parse_message(decode: Callable[[bytes], T], data: bytes) -> T:
    """Parse a message. Raises InvalidArgument."""
    try:
        return decode(data)
    except Exception as error:  # the exceptions of protobuf differ between its implementations
        raise InvalidArgument("The request cannot be decoded as the message that the method takes") from error


def serialize_message(message: Message) -> bytes:
    """Serialize a message, with map entries in a fixed order, so that equal responses have equal bytes."""
    return message.SerializeToString(deterministic=True)


GRPC_LOGGER: Final = "grpc._cython.cygrpc"


def concerns_present_caller(record: logging.LogRecord) -> bool:
    """Return False for gRPC's error that the status of a call could not be sent, since its caller is gone."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, grpc.aio.InternalError) and "SendStatusFromServerOperation" in str(error))


async def send_answer(context: Context, answer: Message) -> None:
    """Send an answer of a stream, waiting until its caller reads. Raises CancelledError if the caller is gone."""
    try:
        await context.write(serialize_message(answer))
    except grpc.aio.InternalError as error:
        # A closed connection fails the waiting write before gRPC cancels the call.
        raise asyncio.CancelledError from error


async def abort_call(context: Context, status: RichStatus) -> NoReturn:
    """End a call with the status of its error. Raises AbortError, and CancelledError if the caller is gone."""
    try:
        await context.abort_with_status(status)
    except grpc.aio.InternalError as error:
        # A closed connection fails the sending before gRPC cancels the call.
        raise asyncio.CancelledError from error
