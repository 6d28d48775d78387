"""The gRPC server around the servicers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.client.contract import methods
from cstp_grpc.config import GrpcSettings, Settings, join
from cstp_grpc.reflection import SERVICE_NAMES, SymbolPool, build_reflection_handlers
from cstp_grpc.server.call_handlers import CallHandlers, CallPolicy, RegisteredHandlers, Servicer
from cstp_grpc.server.deployment import ALONE, Deployment
from cstp_grpc.server.event_loop import EventLoopThread
from cstp_grpc.server.health import Health
from cstp_grpc.server.interceptors.auth import ANONYMOUS, Authentication
from cstp_grpc.server.interceptors.call import AdmissionStep
from cstp_grpc.server.interceptors.calls_in_progress import CallsInProgress
from cstp_grpc.server.interceptors.errors import ErrorAnswers, RefusalSink, refuse_expired
from cstp_grpc.server.interceptors.rate_limit import RateLimiting
from cstp_grpc.server.interceptors.validation import Validation
from cstp_grpc.server.lanes import Lanes
from cstp_grpc.server.open_handlers import MOST_STREAMS, OpenHandlers
from cstp_grpc.server.open_streams import OpenStreams

STREAM_GRACE: Final = 1.0
"""Seconds for streams of answers to end by themselves when the server stops."""

INTERRUPTED_GRACE: Final = 1.0
"""Seconds for streams that are interrupted, and for the last answers, to be sent."""

LOOPBACK: Final = "127.0.0.1"

PING_MILLISECONDS: Final = 30_000
"""How long a caller with open calls may be silent before it is asked whether it is there, and may take to answer."""

IDLE_MILLISECONDS: Final = 300_000
"""How long a connection may have no calls; clients connect again by themselves. Each holds a file descriptor, and gRPC
cannot bound how many there are."""

HANDSHAKE_MILLISECONDS: Final = 10_000
"""How long a new connection may take to say that it speaks HTTP/2, TLS included."""


class CannotListen(Exception):
    """The server cannot listen where it was told to."""


@dataclass(frozen=True, slots=True)
class Listening:
    """The ports of a server; `private` is the loopback one without TLS, None where there is none."""

    port: int
    private: int | None


class GrpcServer:
    """Serves the contract, health and reflection on an event loop in a thread of its own.

    `details` are what health tells beside the services. It closes the lanes when it stops. With a certificate it speaks
    TLS.
    """

    def __init__(
        self,
        settings: GrpcSettings,
        policy: CallPolicy,
        servicers: Iterable[Servicer],
        details: Mapping[str, Callable[[], bool]],
        lanes: Lanes,
        certificate: ServerCertificate | None = None,
        deployment: Deployment = ALONE,
    ) -> None:
        self._settings = settings
        self._deployment = deployment
        self._certificate = certificate
        self._lanes = lanes
        self._in_progress = policy.in_progress
        self._streams = OpenStreams()
        self._open_streams = OpenStreams(MOST_STREAMS)
        self._services = sorted({method.service for method in methods().values()})
        self._health = Health(details)
        self._handlers = [
            CallHandlers(servicers, policy, lanes, self._streams),
            OpenHandlers(self._open_services(), settings.message_seconds, self._open_streams),
        ]
        self._loop: EventLoopThread | None = None
        self._server: grpc.aio.Server | None = None

    def start(self, *, private: bool = False) -> Listening:
        """Listen, and say where. Raises CannotListen.

        With `private` a server that speaks TLS listens without it too, on a free loopback port.
        """
        self._loop = EventLoopThread("event-loop")
        self._loop.start()
        try:
            return self._loop.run(self._start(private=private))
        except BaseException:
            self._loop.stop()
            self._loop = None
            raise

    def stop(self, drain_seconds: float) -> None:
        """Refuse new calls, let those in progress end for up to `drain_seconds`, then stop.

        Streams of answers, which need not have an end, are interrupted before.
        """
        if self._loop is not None:
            self._loop.run(self._stop(drain_seconds))
            self._loop.stop()
            self._loop = None
        self._lanes.close()

    def report_failure(self) -> None:
        """Say by health that nothing is served until a restart; from any thread."""
        if self._loop is None:
            self._health.fail()
        else:
            self._loop.call(self._health.fail)

    def _open_services(self) -> RegisteredHandlers:
        """Return the handlers of health and reflection."""
        reflected = reflection.aio.ReflectionServicer(
            [*self._services, health.SERVICE_NAME, *SERVICE_NAMES], SymbolPool()
        )
        registered = RegisteredHandlers([(health_pb2_grpc.add_HealthServicer_to_server, self._health)])
        registered.add_generic_rpc_handlers(build_reflection_handlers(reflected))
        return registered

    async def _start(self, *, private: bool) -> Listening:
        options = channel_options(self._settings, reuse_port=self._deployment.supervised)
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(self._handlers)
        port = self._listen(server, join(self._settings.host, self._settings.port))
        secret = None
        if (given := self._deployment.private_port) is not None or (private and self._certificate):
            secret = server.add_insecure_port(join(LOOPBACK, given or 0))
        await server.start()
        self._server = server
        for service in self._services:
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return Listening(port, secret)

    def _listen(self, server: grpc.aio.Server, address: str) -> int:
        try:
            if self._certificate:
                return server.add_secure_port(address, self._certificate.grpc_credentials())
            return server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address}: is the port taken? Set grpc.port to another") from error

    async def _stop(self, drain_seconds: float) -> None:
        assert self._server is not None, "a server that has a loop has started"
        self._health.enter_graceful_shutdown()
        draining = asyncio.ensure_future(self._server.stop(drain_seconds))
        done, _ = await asyncio.wait({draining}, timeout=min(drain_seconds, STREAM_GRACE))
        if done:
            return
        self._streams.interrupt()
        self._open_streams.interrupt()
        idle = asyncio.ensure_future(self._in_progress.wait_until_idle())
        await asyncio.wait({draining, idle}, timeout=drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({draining}, timeout=INTERRUPTED_GRACE)
        # Streams whose callers do not read what was sent are left; no status can be sent to them.
        await self._server.stop(None)
        await draining
        idle.cancel()


def channel_options(settings: GrpcSettings, *, reuse_port: bool) -> list[tuple[str, int]]:
    """Return the channel options of the server."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # Two servers on one port each get a part of the calls.
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
        ("grpc.max_connection_idle_ms", IDLE_MILLISECONDS),
        # A caller that vanished without a word would keep its streams, of which there are not many, for hours.
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PING_MILLISECONDS),
        # Callers that watch ask likewise whether the server is there.
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MILLISECONDS // 2),
    ]


def build_call_policy(settings: Settings, refusals: RefusalSink, deployment: Deployment = ALONE) -> CallPolicy:
    """Return what holds for all calls; what is refused is counted in `refusals`. Raises ConfigError."""
    return CallPolicy(
        admission_steps(settings, deployment),
        CallsInProgress(settings.grpc.max_calls_per_agent, settings.grpc.max_calls),
        Validation(settings.grpc.max_depth, settings.grpc.max_values),
        ErrorAnswers(refusals),
        settings.grpc.message_seconds,
    )


def admission_steps(settings: Settings, deployment: Deployment) -> Sequence[AdmissionStep]:
    """Return what judges every call before its message is read, in this order. Raises ConfigError.

    Work for callers that no longer wait is refused before it costs anything. Authentication precedes rate limits, which
    count by agent.
    """
    tokens = settings.auth.tokens if settings.auth.enabled else None
    steps: list[AdmissionStep] = [refuse_expired, Authentication(tokens, methods().values())]
    if settings.rate_limits.enabled:
        agents = [ANONYMOUS] if tokens is None else [token.name for token in tokens]
        steps.append(RateLimiting(settings.rate_limits, methods(), agents, deployment.limits_memory))
    return steps
