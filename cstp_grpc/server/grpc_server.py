"""The gRPC server around the servicers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.measures import Measure, MeasureKind, read_value
from cstp_grpc.contract.caller import ANONYMOUS
from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.contract.reflection import SERVICE_NAMES, SymbolPool, build_reflection_handlers
from cstp_grpc.core.audit.refused_calls import RefusalCounter
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import GrpcSettings, RateLimitSettings, Settings, join_host_port
from cstp_grpc.platform.grpc_listener import connection_options
from cstp_grpc.server import call_handlers
from cstp_grpc.server.deployment import SINGLE_PROCESS, Deployment
from cstp_grpc.server.execution import CallPools, EventLoopThread
from cstp_grpc.server.identity.authentication import Authenticator, Credentials
from cstp_grpc.server.interceptors.admission import AdmissionStep, CallsInProgress, OpenStreams, refuse_expired
from cstp_grpc.server.interceptors.error_status import ErrorReporter
from cstp_grpc.server.interceptors.load_shedding import LoadShedder
from cstp_grpc.server.interceptors.rate_limits import RateLimiter
from cstp_grpc.server.open_services import MAX_OPEN_STREAMS, HealthService, OpenHandlers
from cstp_grpc.server.request_validation import RequestValidator, StructBounds

if TYPE_CHECKING:
    from cstp_grpc.server.interceptors.shared_rate_limits import SharedRateLimiter

STREAM_GRACE: Final = 1.0
"""Seconds for response streams to end by themselves when the server stops. Chosen: watches never do."""

INTERRUPTED_GRACE: Final = 1.0
"""Seconds for cancelled streams and the last responses to be sent. Chosen: a few round trips."""

LOOPBACK: Final = "127.0.0.1"

MAX_UNACCEPTED_CALLS: Final = 10_000
"""Calls that gRPC keeps until the event loop takes them, at 5 KB each; more are cancelled. Chosen: with gRPC's own 1000
it cancelled calls that had time, because of others whose deadlines of milliseconds had passed in the queue."""


@dataclass(frozen=True, slots=True)
class BoundPorts:
    """The ports of a server; `private` is the loopback port without TLS, or None."""

    port: int
    private: int | None


class GrpcServer:
    """Serves the contract, health and reflection on an event loop in its own thread.

    `details` are additional names of the health service. It closes the call pools when it stops. With a certificate it
    speaks TLS.
    """

    def __init__(
        self,
        settings: GrpcSettings,
        policy: call_handlers.CallPolicy,
        servicers: Iterable[call_handlers.ServicerRegistration],
        details: Mapping[str, Callable[[], bool]],
        pools: CallPools,
        certificate: ServerCertificate | None = None,
        deployment: Deployment = SINGLE_PROCESS,
    ) -> None:
        self._settings = settings
        self._deployment = deployment
        self._certificate = certificate
        self._pools = pools
        self._in_progress = policy.in_progress
        self._shared_limits = policy.shared_limits
        self._streams = OpenStreams()
        self._open_streams = OpenStreams(MAX_OPEN_STREAMS)
        self._services = sorted({method.service for method in policy.methods.values()})
        self._health = HealthService(details)
        self._handlers = [
            call_handlers.CallHandlers(servicers, policy, pools, self._streams),
            OpenHandlers(self._open_services(), settings.message_seconds, self._open_streams),
        ]
        self._loop: EventLoopThread | None = None
        self._server: grpc.aio.Server | None = None

    def start(self, *, private: bool = False) -> BoundPorts:
        """Listen and return the ports. Raises CannotListen.

        With `private`, a server that speaks TLS also listens without it on a free loopback port.
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
        """Refuse new calls, drain those in progress for up to `drain_seconds`, then stop.

        Response streams, which may never end, are cancelled earlier.
        """
        if self._loop is not None:
            self._loop.run(self._stop(drain_seconds))
            if self._shared_limits is not None:
                self._loop.run(self._shared_limits.close())
            self._loop.stop()
            self._loop = None
        self._pools.close()

    def report_failure(self) -> None:
        """Report NOT_SERVING until a restart; from any thread."""
        if self._loop is None:
            self._health.fail()
        else:
            self._loop.call(self._health.fail)

    @property
    def measures(self) -> list[Measure]:
        """The figures of calls in progress."""
        return [
            Measure(
                "calls_in_progress",
                "Calls that were admitted and not answered yet; of streams only until their request is there.",
                read_value(lambda: self._in_progress.total),
            ),
            Measure(
                "calls_shed",
                "Calls that were refused under load, because checks and announcements go first.",
                read_value(lambda: self._in_progress.shed_count),
                kind=MeasureKind.COUNTER,
            ),
            Measure(
                "response_streams_open", "Response streams that are open.", read_value(lambda: self._streams.count)
            ),
        ]

    def _open_services(self) -> call_handlers.RegisteredHandlers:
        reflected = reflection.aio.ReflectionServicer(
            [*self._services, health.SERVICE_NAME, *SERVICE_NAMES], SymbolPool()
        )
        registered = call_handlers.RegisteredHandlers([(health_pb2_grpc.add_HealthServicer_to_server, self._health)])
        registered.add_generic_rpc_handlers(build_reflection_handlers(reflected))
        return registered

    async def _start(self, *, private: bool) -> BoundPorts:
        options = channel_options(self._settings, reuse_port=self._deployment.supervised)
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(self._handlers)
        port = self._listen(server, join_host_port(self._settings.host, self._settings.port))
        private_port = None
        if (port_number := self._deployment.private_port) is not None or (private and self._certificate):
            # Without TLS, so on loopback only; callers need a token there too.
            private_port = server.add_insecure_port(join_host_port(LOOPBACK, port_number or 0))
        await server.start()
        self._server = server
        for service in self._services:
            self._health.set_status(service, health_pb2.HealthCheckResponse.SERVING)
        return BoundPorts(port, private_port)

    def _listen(self, server: grpc.aio.Server, address: str) -> int:
        try:
            if self._certificate:
                return server.add_secure_port(address, self._certificate.grpc_credentials())
            return server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(address, "grpc.port") from error

    async def _stop(self, drain_seconds: float) -> None:
        assert self._server is not None, "a server that has a loop has started"
        # The order: report NOT_SERVING, refuse new calls, give streams a moment, cancel them, wait for the calls in
        # progress, and only then end the remaining ones.
        self._health.enter_graceful_shutdown()
        draining = asyncio.ensure_future(self._server.stop(drain_seconds))
        done, _ = await asyncio.wait({draining}, timeout=min(drain_seconds, STREAM_GRACE))
        if done:
            return
        self._streams.cancel_all()
        self._open_streams.cancel_all()
        idle = asyncio.ensure_future(self._in_progress.wait_until_idle())
        await asyncio.wait({draining, idle}, timeout=drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({draining}, timeout=INTERRUPTED_GRACE)
        # Only streams whose callers do not read are left; flow control keeps even a status from reaching them.
        await self._server.stop(None)
        await draining
        idle.cancel()


def channel_options(settings: GrpcSettings, *, reuse_port: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # Only for workers of one supervisor: gRPC's default is on, and a second server on the port by mistake would
        # silently take some of the calls.
        ("grpc.so_reuseport", int(reuse_port)),
        # Both: between the two gRPC refuses at random, and it refuses with CANCELLED, which no caller repeats.
        ("grpc.server.max_pending_requests", MAX_UNACCEPTED_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_UNACCEPTED_CALLS),
        *connection_options(),
    ]


def build_call_policy(
    settings: Settings,
    refusals: RefusalCounter,
    deployment: Deployment = SINGLE_PROCESS,
    credentials: Credentials | None = None,
    observers: Sequence[call_handlers.CallObserver] = (),
) -> call_handlers.CallPolicy:
    """Build the policy of all calls, of callers with tokens of the settings or other credentials. Raises ConfigError.

    Refused calls are counted in `refusals`.
    """
    methods = contract_methods(settings.disabled_services)
    limiter = build_rate_limiter(settings, methods, deployment)
    shared = build_shared_limiter(settings.rate_limits, methods, limiter)
    if shared is not None:
        shared.verify_access()
    shedder = LoadShedder(settings.grpc.shed_from_calls) if settings.grpc.shed_from_calls else None
    return call_handlers.CallPolicy(
        methods,
        admission_steps(settings, methods, credentials, None if shared else limiter),
        CallsInProgress(settings.grpc.max_calls_per_agent, settings.grpc.max_calls, shedder),
        RequestValidator(
            StructBounds(settings.grpc.max_depth, settings.grpc.max_values, settings.cstp.guardrails.max_values)
        ),
        ErrorReporter(refusals),
        settings.grpc.message_seconds,
        observers,
        shared,
        limiter,
    )


def build_rate_limiter(
    settings: Settings, methods: Mapping[str, RpcMethod], deployment: Deployment
) -> RateLimiter | None:
    """Build the limiter of calls on this machine; None without limits. Raises ConfigError."""
    if not settings.rate_limits.enabled:
        return None
    agents = [token.name for token in settings.auth.tokens] if settings.auth.enabled else [ANONYMOUS]
    return RateLimiter(settings.rate_limits, methods, agents, deployment.limits_memory)


def build_shared_limiter(
    settings: RateLimitSettings, methods: Mapping[str, RpcMethod], local: RateLimiter | None
) -> SharedRateLimiter | None:
    """Build the limiter of calls in Redis; None without limits or Redis. Raises ConfigError and MissingExtra."""
    if local is None or settings.redis is None:
        return None
    # Not loaded before it is needed: most servers share no limits.
    from cstp_grpc.server.interceptors.shared_rate_limits import SharedRateLimiter

    return SharedRateLimiter(settings, settings.redis, methods, local)


def admission_steps(
    settings: Settings, methods: Mapping[str, RpcMethod], credentials: Credentials | None, limiter: RateLimiter | None
) -> Sequence[AdmissionStep]:
    """Return the checks of every call before its message is read, in this order. Raises ConfigError.

    Expired calls are refused before they cost anything. Authentication precedes rate limits, which count by agent.
    """
    tokens = settings.auth.tokens if settings.auth.enabled else None
    steps: list[AdmissionStep] = [refuse_expired, Authenticator(tokens, methods.values(), credentials)]
    if limiter is not None:
        steps.append(limiter)
    return steps
