"""A2A over gRPC: version 1.0, version 0.3, and the health and reflection services."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from operator import attrgetter
from typing import Any, Final, NoReturn

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError, InvalidParamsError
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_status import rpc_status

from bridge import http_request
from bridge.a2a import call_context
from bridge.a2a.errors import UpstreamError, describe_error, grpc_error, invalid_params, unexpected_error
from bridge.a2a.operations import A2A_SERVICE, MESSAGES_V1_0, OperationTable, bind_operations
from bridge.a2a.request_handler import A2aServices
from bridge.call_observation import UNKNOWN_METHOD, CallOutcome, Surface
from bridge.upstream import Metadata
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.call_origin import FORWARDED_FOR_METADATA_KEY
from cstp_grpc.contract.errors import CannotListen, DeadlineExceeded, MethodNotFound, drop_tracebacks
from cstp_grpc.contract.reflection import SERVICE_NAMES, SymbolPool, build_reflection_handlers
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import Settings, join_host_port
from cstp_grpc.platform.grpc_listener import connection_options

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

ANONYMOUS_READ_SECONDS: Final = 1.0
"""Seconds that a request may take to arrive before its caller is authenticated. Chosen: most arrive with their
headers."""
LATE_REQUEST: Final = "The request did not arrive in time"


class RequestReader:
    """Reads the request of a call whose handler takes a stream of bytes, so that the wait for it can be bounded."""

    def __init__(self, context: Context) -> None:
        # One task for all waits, because a cancelled read of grpc.aio cannot be repeated. It ends with the call at the
        # latest; the callback retrieves its exception, which asyncio would otherwise log.
        self._reading = asyncio.ensure_future(context.read())
        self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())

    async def read_within(self, seconds: float) -> bytes | None:
        """Return the bytes of the request, or None if they do not arrive in time.

        Raises InvalidParamsError if the caller half-closed without a request.
        """
        await asyncio.wait([self._reading], timeout=seconds)
        if not self._reading.done():
            return None
        request = self._reading.result()
        if not isinstance(request, bytes):
            raise invalid_params("The call holds no request")
        return request


class OpenStreamLimit:
    """Bounds the number of open streams that need no token, so that they cannot exhaust the server."""

    def __init__(self, most: int) -> None:
        self._free = most

    @asynccontextmanager
    async def hold(self, context: Context) -> AsyncIterator[None]:
        """Hold a place for the length of a block, or abort the call with RESOURCE_EXHAUSTED if none is free."""
        # No lock: it runs on one event loop, and nothing is awaited between the test and the count.
        if not self._free:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many such streams are open; try again later")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


class StreamLimitedHealth(health.aio.HealthServicer):  # type: ignore[misc]
    """The gRPC health service with a bounded number of watches."""

    def __init__(self, places: OpenStreamLimit) -> None:
        super().__init__()
        self._places = places

    def handlers(self) -> grpc.GenericRpcHandler:
        encode = health_pb2.HealthCheckResponse.SerializeToString
        rpcs: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            # A stream of requests on our side only, so that the wait for the one request can be bounded; clients see a
            # unary call.
            "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=encode),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=encode),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, rpcs)

    async def _check(self, _: AsyncIterator[bytes], context: Context) -> health_pb2.HealthCheckResponse:
        return await self.Check(await read_health_request(context), context)

    async def _watch(self, _: AsyncIterator[bytes], context: Context) -> None:
        request = await read_health_request(context)
        async with self._places.hold(context):
            await self.Watch(request, context)


class StreamLimitedReflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """The gRPC reflection service for the named services, with a bounded number of streams."""

    def __init__(self, names: Iterable[str], places: OpenStreamLimit) -> None:
        super().__init__(names, SymbolPool())
        self._places = places

    async def ServerReflectionInfo(  # noqa: N802
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        # Closed explicitly: the garbage collector would finish an abandoned generator at some time only.
        async with self._places.hold(context), aclosing(super().ServerReflectionInfo(requests, context)) as answers:
            async for answer in answers:
                yield answer


async def read_health_request(context: Context) -> health_pb2.HealthCheckRequest:
    """Read the request of a health call, or abort the call if it is missing or invalid."""
    try:
        data = await RequestReader(context).read_within(ANONYMOUS_READ_SECONDS)
        if data is None:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, LATE_REQUEST)
        return health_pb2.HealthCheckRequest.FromString(data)
    except (InvalidParamsError, DecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request cannot be decoded")


CONCURRENT_CALLS: Final = 1000
"""Calls and streams open at once; gRPC answers RESOURCE_EXHAUSTED to more. Chosen: each costs some kilobytes."""
CALLS_OF_CONNECTION: Final = 100
"""Calls and streams of one connection (SETTINGS_MAX_CONCURRENT_STREAMS); clients queue more. 100 is what RFC 9113,
section 6.5.2, recommends at least."""
OPEN_STREAMS: Final = 64
"""Open streams of health and reflection, which need no token. Chosen: strangers must not take up CONCURRENT_CALLS."""
HEALTH_NOTICE_SECONDS: Final = 1.0
"""Maximum seconds to send NOT_SERVING to health watchers when the server stops. Chosen: one may not read."""
MAX_ERROR_TEXT_BYTES: Final = 1000
MAX_STATUS_BYTES: Final = 5000
"""Maximum bytes of an error's text and of its status. Clients accept 8 KiB of trailing metadata, which has the text
twice, and the status in Base64."""


@dataclass(frozen=True, slots=True)
class GrpcVersion:
    """A version of A2A as it is served over gRPC."""

    version: str
    service: ServiceDescriptor
    text: Callable[[A2AError], str]
    """Returns the text of an error."""


def error_text_v0_3(error: A2AError) -> str:
    """Return the text of an error; an A2A error begins with its name, by which clients of 0.3 recognize it."""
    return f"{type(error).__name__}: {error.message}" if type(error) in JSON_RPC_ERROR_CODE_MAP else error.message


GRPC_VERSIONS: Final = (
    GrpcVersion(call_context.V1_0, A2A_SERVICE, attrgetter("message")),
    GrpcVersion(call_context.V0_3, a2a_v0_3_pb2.DESCRIPTOR.services_by_name["A2AService"], error_text_v0_3),
)


class A2aGrpcServer:
    """Serves A2A over gRPC.

    The constructor binds the port, so that the agent card can name it; `start` begins to answer. Health and reflection
    need no token, other calls need credentials as for the gRPC server. Requests are bounded as over HTTP, in bytes and
    in the time to arrive. With a certificate the server uses TLS; `reuse_port` shares the port with other processes.
    Raises CannotListen.
    """

    def __init__(self, settings: Settings, certificate: ServerCertificate | None, *, reuse_port: bool = False) -> None:
        self._timeout = settings.server.timeout_seconds
        self._server = grpc.aio.server(
            options=server_options(settings, reuse_port=reuse_port), maximum_concurrent_rpcs=CONCURRENT_CALLS
        )
        self._open_streams = OpenStreamLimit(OPEN_STREAMS)
        self._health = StreamLimitedHealth(self._open_streams)
        # Bound here and started later: the agent card names the port, and must be built before the first call is
        # answered.
        address = join_host_port(settings.a2a.grpc_host, settings.a2a.grpc_port)
        try:
            if certificate:
                self.port = self._server.add_secure_port(address, certificate.grpc_credentials())
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(address, "a2a.grpc_port") from error

    async def start(self, services: A2aServices, address: str) -> None:
        """Start to answer.

        `address` is the public HTTP URL of the bridge, for the extended card: unlike HTTP, gRPC does not tell a
        servicer by which host name it was called.
        """
        handlers = [A2aGrpcService(version, services, address, self._timeout) for version in GRPC_VERSIONS]
        self._server.add_generic_rpc_handlers([*handlers, self._health.handlers()])
        names = [version.service.full_name for version in GRPC_VERSIONS]
        shown = StreamLimitedReflection([*names, health.SERVICE_NAME, *SERVICE_NAMES], self._open_streams)
        self._server.add_generic_rpc_handlers(build_reflection_handlers(shown))
        await self._server.start()
        # After the start, so that a client that sees SERVING can call.
        for name in (health.OVERALL_HEALTH, *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, drain_seconds: float) -> None:
        """Refuse new calls, let those in progress end for up to `drain_seconds`, then cancel them."""
        with suppress(TimeoutError):
            # A watcher that does not read blocks the library's servicer, and must not keep the server from stopping.
            async with asyncio.timeout(HEALTH_NOTICE_SECONDS):
                await self._health.enter_graceful_shutdown()
        await self._server.stop(drain_seconds)


@dataclass(frozen=True, slots=True)
class A2aGrpcCall:
    """A call over gRPC with its metadata and A2A context."""

    rpc: str
    context: Context
    request_id: str
    metadata: Metadata
    a2a_context: call_context.A2aCallContext

    async def abort(self, error: A2AError, text: str) -> NoReturn:
        found = grpc_error(error, self.request_id)
        found.message = text
        status = rpc_status.to_status(truncate_status(found))
        trailing = (*status.trailing_metadata, (REQUEST_ID_KEY, self.request_id))
        await self.context.abort(status.code, status.details, trailing)


class A2aGrpcService(grpc.GenericRpcHandler):
    """Answers the calls of one version of A2A. Their requests have `timeout` seconds to arrive."""

    def __init__(self, version: GrpcVersion, services: A2aServices, address: str, timeout: float) -> None:
        self._version = version
        self._services = services
        self._address = address
        self._timeout = timeout
        self._operations: OperationTable | None = None
        """The operations of this version, loaded at the first call."""
        self._prefix = f"/{version.service.full_name}/"
        self._handlers = {self._prefix + rpc.name: self._handler(rpc) for rpc in version.service.methods}
        self._unknown: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(self._refuse)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = handler_call_details.method
        # None lets gRPC ask the next generic handler, that of the other version or of health.
        return self._handlers.get(path) or (self._unknown if path.startswith(self._prefix) else None)

    def _handler(self, rpc: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        """Build the handler of an rpc, which takes a stream of bytes because of RequestReader."""
        request, response = map(message_factory.GetMessageClass, (rpc.input_type, rpc.output_type))

        async def unary(_: AsyncIterator[bytes], context: Context) -> Message:
            call = self._open_call(rpc.name, context)
            with self._services.observer.observe_call(Surface.A2A_GRPC, call.rpc) as outcome:
                try:
                    answering = (await self._load()).answers[rpc.name]
                    # Not a local: gRPC keeps this frame with the exception of an abort until a garbage collection.
                    answer: Message = await answering(await self._read_request(call, request), call.a2a_context)
                except Exception as error:  # noqa: BLE001 - every error becomes a status
                    await self._abort(call, outcome, error)
                return answer

        async def stream(_: AsyncIterator[bytes], context: Context) -> AsyncIterator[Message]:
            call = self._open_call(rpc.name, context)
            with self._services.observer.observe_call(Surface.A2A_GRPC, call.rpc) as outcome:
                try:
                    streaming = (await self._load()).streams[rpc.name]
                    answered = streaming(await self._read_request(call, request), call.a2a_context)
                    async with aclosing(answered) as answers:
                        async for answer in answers:
                            yield answer
                except Exception as error:  # noqa: BLE001 - every error becomes a status
                    await self._abort(call, outcome, error)

        if rpc.server_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=response.SerializeToString)
        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=response.SerializeToString)

    async def _refuse(self, _: AsyncIterator[bytes], context: Context) -> bytes:
        """Abort a call of an unknown rpc, after checking the caller as for any other error."""
        call = self._open_call(UNKNOWN_METHOD, context)
        unknown = UpstreamError(MethodNotFound(f"{self._version.service.full_name} has no such method"))
        with self._services.observer.observe_call(Surface.A2A_GRPC, call.rpc) as outcome:
            try:
                await self._services.access.fetch_access(call.metadata)
            except Exception as error:  # noqa: BLE001 - every error becomes a status
                await self._abort(call, outcome, error)
            await self._abort(call, outcome, unknown)

    def _open_call(self, rpc: str, context: Context) -> A2aGrpcCall:
        request_id = http_request.request_id_or_new(next(iter(metadata_values(context, REQUEST_ID_KEY)), ""))
        # Set before anything can fail, so that the id is in the answer whatever happens.
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
        forwarded = http_request.forwarded_metadata(lambda name: metadata_values(context, name), request_id)
        origin = self._services.origins.metadata_of_call(
            context.peer(), metadata_values(context, FORWARDED_FOR_METADATA_KEY)
        )
        shown = (
            ()
            if metadata_values(context, http_request.AUTHORIZATION)
            else self._services.origins.certificate_of_call(context)
        )
        metadata = [*forwarded, *origin, *shown]
        extensions = [
            *metadata_values(context, call_context.EXTENSIONS_HEADER),
            *metadata_values(context, call_context.EXTENSIONS_HEADER_V0_3),
        ]
        a2a_context = call_context.A2aCallContext(
            metadata, self._address, call_context.parse_extensions(extensions), self._version.version
        )
        return A2aGrpcCall(rpc, context, request_id, metadata, a2a_context)

    async def _read_request(self, call: A2aGrpcCall, kind: type[Message]) -> Message:
        """Read and decode the request of a call, after sending the activated extension. Raises A2AError."""
        data = await self._read_bytes(call)
        if call_context.is_extension_activated(call.a2a_context):
            names = [
                name
                for name in (call_context.EXTENSIONS_HEADER, call_context.EXTENSIONS_HEADER_V0_3)
                if name == call_context.EXTENSIONS_HEADER or metadata_values(call.context, name)
            ]
            # gRPC sends initial metadata once and before the first message, hence here and not with the response.
            await call.context.send_initial_metadata([(name.lower(), call_context.EXTENSION_URI) for name in names])
        call_context.require_version(
            ", ".join(metadata_values(call.context, call_context.VERSION_HEADER)),
            self._version.version,
            self._version.service.full_name,
        )
        return decode_request(data, kind)

    async def _read_bytes(self, call: A2aGrpcCall) -> bytes:
        """Read the bytes of a request; only known callers may take longer than ANONYMOUS_READ_SECONDS.

        Raises A2AError.
        """
        reader = RequestReader(call.context)
        data = await reader.read_within(ANONYMOUS_READ_SECONDS)
        # Only slow requests cost a look-up of the caller; others are authenticated by their call to the server.
        if data is None:
            await self._services.access.fetch_access(call.metadata)
            data = await reader.read_within(self._timeout)
        if data is None:
            raise UpstreamError(DeadlineExceeded(LATE_REQUEST))
        await self._services.access.check_large(data, call.metadata)
        return data

    async def _load(self) -> OperationTable:
        """Return the operations of this version, loaded at the first call."""
        if self._operations is None:
            binding = MESSAGES_V1_0
            if self._version.version == call_context.V0_3:
                await call_context.load_sdk_v0_3()
                from bridge.a2a.v0_3_grpc import MESSAGES_V0_3

                binding = MESSAGES_V0_3
            self._operations = bind_operations(self._services.handler, binding)
        return self._operations

    async def _abort(self, call: A2aGrpcCall, outcome: CallOutcome, error: Exception) -> NoReturn:
        """Abort the call with an error; an unexpected one shows the caller only the request id."""
        # No context manager: its `__aexit__` would hold the traceback, and thereby the request, like any local.
        failure: A2AError | None = None
        if isinstance(error, A2AError):
            try:
                failure = await self._services.access.visible_error(error, call.metadata)
            except Exception as other:  # noqa: BLE001 - logged below
                error = other
        if failure is None:
            logger.error("%s %s failed in the bridge", call.request_id, call.rpc, exc_info=error)
            failure = unexpected_error()
        drop_tracebacks(error)
        outcome.failure = describe_error(failure)
        await call.abort(failure, self._version.text(failure))


def server_options(settings: Settings, *, reuse_port: bool = False) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.server.max_body_bytes),
        ("grpc.max_send_message_length", settings.grpc.max_message_bytes),
        ("grpc.max_concurrent_streams", CALLS_OF_CONNECTION),
        # On only for bridges of one supervisor: gRPC's default is on, and a second bridge on the port by mistake would
        # silently take a part of the calls.
        ("grpc.so_reuseport", int(reuse_port)),
        *connection_options(),
    ]


def metadata_values(context: Context, name: str) -> Sequence[str]:
    # gRPC delivers keys in lower case; binary values, under `-bin` keys, are bytes.
    sent = context.invocation_metadata() or ()
    return [value for key, value in sent if key == name.lower() and isinstance(value, str)]


def decode_request(data: bytes, kind: type[Message]) -> Message:
    """Decode a request. Raises InvalidParamsError."""
    try:
        return kind.FromString(data)
    except Exception as error:
        # The exception differs between the implementations of protobuf.
        raise invalid_params("The request cannot be decoded as the message that the operation takes") from error


def truncate_status(status: status_pb2.Status) -> status_pb2.Status:
    """Truncate a status so that it fits into trailing metadata: a long text first, then the last details."""
    text = status.message.encode()
    if len(text) > MAX_ERROR_TEXT_BYTES:
        status.message = text[:MAX_ERROR_TEXT_BYTES].decode(errors="ignore") + "…"
    # The first detail is ErrorInfo, with the reason and the request id: it always stays.
    while status.ByteSize() > MAX_STATUS_BYTES and len(status.details) > 1:
        del status.details[-1]
    return status
