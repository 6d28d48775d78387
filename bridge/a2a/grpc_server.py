"""A2A over gRPC: version 1.0, version 0.3 beside it, health and reflection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NoReturn

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_health.v1 import health, health_pb2
from grpc_status import rpc_status

from bridge import headers
from bridge.a2a import grpc_operations
from bridge.a2a.arrival import LATE, USUAL_SECONDS, Arrival, Context
from bridge.a2a.context import (
    EXTENSION_URI,
    EXTENSIONS,
    OLD_EXTENSIONS,
    V0_3,
    V1_0,
    VERSION,
    CallContext,
    call_context,
    is_activated,
    require_version,
)
from bridge.a2a.conversations import Conversations
from bridge.a2a.errors import Refused, grpc_error, invalid_params, unforeseen
from bridge.a2a.grpc_operations import GrpcOperations
from bridge.a2a.old_generation import load_old_generation
from bridge.a2a.open_services import Health, Places, Reflection
from bridge.a2a.peer import Peer
from bridge.listening import CannotListen
from bridge.methods import Metadata
from bridge.status import Failure
from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.config import Settings, join
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY
from cstp_grpc.reflection import SERVICE_NAMES, build_reflection_handlers

logger = logging.getLogger(__name__)

CONCURRENT_CALLS: Final = 1000
"""Calls and streams that may be open at once; gRPC itself answers RESOURCE_EXHAUSTED to more."""
CALLS_OF_CONNECTION: Final = 100
"""Of these, the calls and streams of one connection; clients keep more of them waiting."""
OPEN_STREAMS: Final = 64
"""Of these, the streams that need no token."""
NOTICE_SECONDS: Final = 1.0
"""How long telling the watchers of the services' health may take at the end."""
MAX_MESSAGE: Final = 1000
MAX_STATUS: Final = 5000
"""Bytes of an error's text and of its details: clients take 8 KiB of trailing metadata, which holds the text twice."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A version of A2A as it is served over gRPC."""

    version: str
    service: ServiceDescriptor
    load: Callable[[Conversations], Awaitable[GrpcOperations]]
    """Returns its operations."""
    text: Callable[[A2AError], str]
    """Returns the text of an error."""


async def load_current(conversations: Conversations) -> GrpcOperations:
    """Return the operations of A2A 1.0."""
    return grpc_operations.operations(conversations)


async def load_old(conversations: Conversations) -> GrpcOperations:
    """Return the operations of A2A 0.3."""
    await load_old_generation()
    from bridge.a2a import grpc_v0_3

    return grpc_v0_3.operations(conversations)


def old_text(error: A2AError) -> str:
    """Return the text of an error. One of A2A's begins with its name, by which clients of 0.3 know it."""
    return f"{type(error).__name__}: {error.message}" if type(error) in JSON_RPC_ERROR_CODE_MAP else error.message


DIALECTS: Final = (
    Dialect(V1_0, a2a_pb2.DESCRIPTOR.services_by_name["A2AService"], load_current, attrgetter("message")),
    Dialect(V0_3, a2a_v0_3_pb2.DESCRIPTOR.services_by_name["A2AService"], load_old, old_text),
)


class A2aGrpcServer:
    """Serves A2A over gRPC.

    Building it takes the port, so that the agent card can name it before anything is answered; `start` begins to
    answer. Health and reflection are open, everything else asks for what the gRPC server asks for. Requests are bounded
    as they are over HTTP: in bytes, and in the time they take to arrive. With a certificate it speaks TLS;
    `reuse_port` shares the port with other processes. Raises CannotListen.
    """

    def __init__(self, settings: Settings, certificate: ServerCertificate | None, *, reuse_port: bool = False) -> None:
        self._timeout = settings.server.timeout_seconds
        self._server = grpc.aio.server(
            options=options(settings, reuse_port=reuse_port), maximum_concurrent_rpcs=CONCURRENT_CALLS
        )
        self._open_streams = Places(OPEN_STREAMS)
        self._health = Health(self._open_streams)
        address = join(settings.a2a.grpc_host, settings.a2a.grpc_port)
        try:
            if certificate:
                self.port = self._server.add_secure_port(address, certificate.grpc_credentials())
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(address, "a2a.grpc_port") from error

    async def start(self, peer: Peer, address: str) -> None:
        """Begin to answer.

        `address` is the public one of the bridge over HTTP, for the extended card: unlike HTTP, gRPC does not tell a
        servicer by which host name it was called.
        """
        services = [Service(dialect, peer, address, self._timeout) for dialect in DIALECTS]
        self._server.add_generic_rpc_handlers([*services, self._health.handlers()])
        names = [dialect.service.full_name for dialect in DIALECTS]
        shown = Reflection([*names, health.SERVICE_NAME, *SERVICE_NAMES], self._open_streams)
        self._server.add_generic_rpc_handlers(build_reflection_handlers(shown))
        await self._server.start()
        for name in (health.OVERALL_HEALTH, *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, drain_seconds: float) -> None:
        """Refuse new calls, let those in progress end for up to `drain_seconds`, then break them off."""
        with suppress(TimeoutError):
            # A watcher that takes nothing must not keep the server from stopping.
            async with asyncio.timeout(NOTICE_SECONDS):
                await self._health.enter_graceful_shutdown()
        await self._server.stop(drain_seconds)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what it says around its message, and the way to answer it."""

    rpc: str
    context: Context
    request_id: str
    metadata: Metadata
    told: CallContext

    async def abort(self, error: A2AError, text: str) -> NoReturn:
        """End the call with an error, in the words of `text`."""
        found = grpc_error(error, self.request_id)
        found.message = text
        status = rpc_status.to_status(fitting(found))
        trailing = (*status.trailing_metadata, (REQUEST_ID_KEY, self.request_id))
        await self.context.abort(status.code, status.details, trailing)


class Service(grpc.GenericRpcHandler):
    """Answers the calls of one version of A2A. Their requests have `timeout` seconds to arrive."""

    def __init__(self, dialect: Dialect, peer: Peer, address: str, timeout: float) -> None:
        self._dialect = dialect
        self._peer = peer
        self._address = address
        self._timeout = timeout
        self._operations: GrpcOperations | None = None
        """Those of the version, once they were asked for."""
        self._prefix = f"/{dialect.service.full_name}/"
        self._handlers = {self._prefix + rpc.name: self._handler(rpc) for rpc in dialect.service.methods}
        self._unknown: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(self._refuse)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return what answers a call, None where it is not for this service."""
        path = handler_call_details.method
        return self._handlers.get(path) or (self._unknown if path.startswith(self._prefix) else None)

    def _handler(self, rpc: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        """Return what answers the calls of an rpc, which takes a stream of bytes because of how Arrival waits."""
        request, response = map(message_factory.GetMessageClass, (rpc.input_type, rpc.output_type))

        async def unary(_: AsyncIterator[bytes], context: Context) -> Message:
            call = self._begin(rpc.name, context)
            async with self._answering_errors(call):
                given = await self._admitted(call, request)
                answer: Message = await (await self._load()).answers[rpc.name](given, call.told)
            return answer

        async def stream(_: AsyncIterator[bytes], context: Context) -> AsyncIterator[Message]:
            call = self._begin(rpc.name, context)
            async with self._answering_errors(call):
                given = await self._admitted(call, request)
                async with aclosing((await self._load()).streams[rpc.name](given, call.told)) as answers:
                    async for answer in answers:
                        yield answer

        if rpc.server_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=response.SerializeToString)
        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=response.SerializeToString)

    async def _refuse(self, _: AsyncIterator[bytes], context: Context) -> bytes:
        """End a call of an rpc that there is none of, as everything else is refused."""
        call = self._begin("a call", context)
        async with self._answering_errors(call):
            await self._peer.gate.admit(call.metadata)
            raise Refused(Failure("METHOD_NOT_FOUND", f"{self._dialect.service.full_name} has no such method"))

    def _begin(self, rpc: str, context: Context) -> Call:
        """Return a call with what it says around its message."""
        request_id = headers.request_id_from(next(iter(texts(context, REQUEST_ID_KEY)), ""))
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
        metadata = headers.forwarded(lambda name: texts(context, name), request_id)
        extensions = [*texts(context, EXTENSIONS), *texts(context, OLD_EXTENSIONS)]
        told = call_context(metadata, self._address, extensions, self._dialect.version)
        return Call(rpc, context, request_id, metadata, told)

    async def _admitted(self, call: Call, kind: type[Message]) -> Message:
        """Return the request of a call that can be answered, after telling which extension is activated.

        Raises A2AError.
        """
        data = await self._arrived(call)
        if is_activated(call.told):
            names = [name for name in (EXTENSIONS, OLD_EXTENSIONS) if name == EXTENSIONS or texts(call.context, name)]
            await call.context.send_initial_metadata([(name.lower(), EXTENSION_URI) for name in names])
        require_version(", ".join(texts(call.context, VERSION)), self._dialect.version, self._dialect.service.full_name)
        return decoded(data, kind)

    async def _arrived(self, call: Call) -> bytes:
        """Return the bytes of a request, which only callers whom the server knows may keep waiting for.

        Raises A2AError.
        """
        arrival = Arrival(call.context)
        data = await arrival.within(USUAL_SECONDS)
        if data is None:
            await self._peer.gate.admit(call.metadata)
            data = await arrival.within(self._timeout)
        if data is None:
            raise Refused(Failure("DEADLINE_EXCEEDED", LATE))
        await self._peer.gate.admit_large(data, call.metadata)
        return data

    async def _load(self) -> GrpcOperations:
        """Return the operations of this version."""
        if self._operations is None:
            self._operations = await self._dialect.load(self._peer.conversations)
        return self._operations

    @asynccontextmanager
    async def _answering_errors(self, call: Call) -> AsyncIterator[None]:
        """End the call with the error that is raised; the unforeseen tells the caller nothing but the request id."""
        try:
            try:
                yield
            except A2AError as error:
                failure = await self._peer.gate.judge(error, call.metadata)
            else:
                return
        except Exception:
            logger.exception("%s %s failed in the bridge", call.request_id, call.rpc)
            failure = unforeseen()
        await call.abort(failure, self._dialect.text(failure))


def options(settings: Settings, *, reuse_port: bool = False) -> list[tuple[str, int]]:
    """Return the channel options of the server."""
    return [
        ("grpc.max_receive_message_length", settings.server.max_body_bytes),
        ("grpc.max_send_message_length", settings.grpc.max_message_bytes),
        ("grpc.max_concurrent_streams", CALLS_OF_CONNECTION),
        # Two servers on one port each get a part of the calls.
        ("grpc.so_reuseport", int(reuse_port)),
    ]


def texts(context: Context, name: str) -> Sequence[str]:
    """Return the values of a metadata key."""
    sent = context.invocation_metadata() or ()
    return [value for key, value in sent if key == name.lower() and isinstance(value, str)]


def decoded(data: bytes, kind: type[Message]) -> Message:
    """Return the request that bytes are. Raises InvalidParamsError."""
    try:
        return kind.FromString(data)
    except Exception as error:
        # What protobuf raises differs between its implementations.
        raise invalid_params("The request cannot be decoded as the message that the operation takes") from error


def fitting(status: status_pb2.Status) -> status_pb2.Status:
    """Return a status that fits into trailing metadata: of long texts the beginning, of details the first."""
    text = status.message.encode()
    if len(text) > MAX_MESSAGE:
        status.message = text[:MAX_MESSAGE].decode(errors="ignore") + "…"
    while status.ByteSize() > MAX_STATUS and len(status.details) > 1:
        del status.details[-1]
    return status
