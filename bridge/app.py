"""The whole bridge: its HTTP application (JSON-RPC at /cstp, event streams, health), A2A, and running them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import grpc
from aiohttp import hdrs, web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bridge import event_streams
from bridge.call_observation import Surface, UnobservedCalls
from bridge.http_request import CALL_ORIGINS, AccessCheck, BodyReader, CallOriginReporter, validate_public_url
from bridge.http_response import Cors
from bridge.jsonrpc import JsonRpcEndpoint
from bridge.upstream import Forwarder, Upstream, open_channel
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform import http_listener
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import ServerSettings, Settings, dial_host, join_host_port

if TYPE_CHECKING:
    from bridge.a2a.module import A2aModule
    from bridge.bridge_metrics import BridgeMetrics

logger = logging.getLogger(__name__)

RPC_PATH: Final = "/cstp"
HEALTH_PATH: Final = "/health"

SEARCH_SERVICE: Final = "search"
"""The name of the search engine in the server's health service."""
RULEBOOKS_SERVICE: Final = "rulebooks"
"""The name of the rulebooks in it; they are unhealthy while their files cannot be loaded."""
DETAILS: Final = (SEARCH_SERVICE, RULEBOOKS_SERVICE)
HEALTH_TIMEOUT: Final = 2.0
"""Maximum seconds for the server's answer. Chosen: load balancers expect a health check to answer within a few."""


def create_app(
    settings: Settings,
    channel: grpc.aio.Channel,
    forwarder: Forwarder,
    a2a: A2aModule | None,
    origins: CallOriginReporter,
    console_url: str | None = None,
) -> web.Application:
    """Build the application, which forwards to the server at the other end of the channel; None leaves A2A out.

    Browsers that open `/` are sent to `console_url`, if it is given. The caller closes the channel and stops A2A.
    """
    server = settings.server
    access = AccessCheck(forwarder)
    rpc = JsonRpcEndpoint(forwarder, access, BodyReader(access.fetch_access, server), server.max_batch)
    app = web.Application(client_max_size=server.max_body_bytes)
    app[CALL_ORIGINS] = origins
    app.on_response_prepare.append(http_listener.set_server_header)
    if server.tls is not None:
        app.on_response_prepare.append(http_listener.set_transport_security)
    app.router.add_post(RPC_PATH, rpc.respond)
    app.router.add_get(HEALTH_PATH, HealthEndpoint(channel).respond)
    if console_url:
        app.router.add_get("/", ConsoleRedirect(console_url).respond)
    paths: dict[str, Iterable[str]] = {RPC_PATH: ("POST",), HEALTH_PATH: ("GET", "HEAD")}
    streams = [event_streams.DECISION_EVENTS, event_streams.INTENT_EVENTS, event_streams.AUDIT_EVENTS]
    streams += [event_streams.APPROVAL_EVENTS] if settings.approvals.enabled else []
    streams += [event_streams.LIAISON_EVENTS] if settings.liaison.enabled else []
    for streamed in streams:
        event_streams.EventStreamEndpoint(streamed, forwarder, access).install(app)
        paths[streamed.path] = ("GET",)
    if a2a:
        a2a.install_routes(app)
        paths |= a2a.http_paths
    # Preflight routes come before the fallback below, whose routes take every method and so OPTIONS too.
    if server.cors_origins:
        Cors(server.cors_origins).install(app, paths)
    if a2a:
        a2a.install_fallback(app)
    return app


class ConsoleRedirect:
    """Sends browsers to the console; other clients get no such page."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def respond(self, request: web.Request) -> web.Response:
        """Redirect a request that accepts HTML. Raises HTTPNotFound for others."""
        if "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            raise web.HTTPNotFound
        return web.Response(
            status=302, headers={hdrs.LOCATION: self._url, hdrs.VARY: hdrs.ACCEPT, hdrs.CACHE_CONTROL: "no-store"}
        )


class HealthEndpoint:
    """Reports the health of the server behind the bridge, without a token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._health = health_pb2_grpc.HealthStub(channel)

    async def respond(self, _: web.Request) -> web.Response:
        """Report the health of the gRPC server, with details of optional parts.

        Without its search engine only searches fail; while rulebooks are invalid, it evaluates the previous ones.
        """
        # The empty name asks for the server as a whole (gRPC health checking protocol).
        server, *parts = await asyncio.gather(*map(self._state, ("", *DETAILS)))
        details = {name: state for name, state in zip(DETAILS, parts, strict=True) if state}
        return web.json_response(
            {"status": server or "unavailable", **details},
            status=200 if server == "ok" else 503,
            headers={hdrs.CACHE_CONTROL: "no-store"},
        )

    async def _state(self, service: str) -> str | None:
        """Return `ok` or `unavailable` for a service of the server, or None if the server does not know it."""
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(service=service), timeout=HEALTH_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            # The health service answers NOT_FOUND for a name that was never registered, as the search is with
            # `search.engine: memory`.
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            logger.info("the gRPC server does not answer: %s", error.details())
            return "unavailable"
        return "ok" if answer.status == health_pb2.HealthCheckResponse.SERVING else "unavailable"


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """The addresses on which the bridge listens, each as `host:port`."""

    http: str
    grpc: str | None
    """A2A over gRPC; None if A2A is left out."""
    secure: bool
    """Whether both speak TLS."""
    metrics_url: str | None = None
    """The URL of the metrics; None without metrics."""

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.http}"


@asynccontextmanager
async def run_bridge(
    settings: Settings,
    upstream: Upstream,
    *,
    reuse_ports: bool = False,
    inner_metrics_port: int | None = None,
    console_url: str | None = None,
) -> AsyncIterator[ListenAddresses]:
    """Run the bridge to a server for the length of a block; `reuse_ports` shares its ports with other bridges.

    `inner_metrics_port` is where a supervisor of several bridges asks this one for its metrics. At the end it accepts
    nothing more, lets the requests in progress and then the tasks finish for up to `grpc.drain_seconds` together, and
    closes the channel last. Raises ConfigError and CannotListen.
    """
    certificate = ServerCertificate.load(settings.server.tls, "server.tls")
    origins = CallOriginReporter(settings, upstream.bridge_key)
    metrics = build_metrics(settings)
    async with (
        record_upstream_calls(settings) as interceptors,
        open_channel(upstream.target, upstream.ca_file, upstream.client_certificate, interceptors) as channel,
        metrics.serve(settings.metrics, inner_metrics_port) if metrics else nullcontext(None) as metrics_url,
    ):
        methods, timeout = contract_methods(settings.disabled_services), settings.server.timeout_seconds
        forwarder = Forwarder(channel, methods, timeout, settings.cstp.guardrails.max_values)
        a2a: A2aModule | None = None
        if settings.a2a.enabled:
            # Imported late: without A2A, neither this package nor its SDK is loaded.
            from bridge.a2a.module import A2aModule

            observer = metrics or UnobservedCalls()
            a2a = A2aModule(
                settings, upstream, channel, forwarder, certificate, origins, observer, reuse_port=reuse_ports
            )
        app = create_app(settings, channel, forwarder, a2a, origins, console_url)
        runner = web.AppRunner(app, shutdown_timeout=settings.grpc.drain_seconds)
        await runner.setup()
        listener = build_listener(runner, settings.server, certificate, metrics.observe_request if metrics else None)
        if metrics:
            metrics.add_measures(listener, channel)
        try:
            host, port = await start_listener(listener, settings.server, reuse_port=reuse_ports)
            if a2a:
                await a2a.start(public_bridge_url(settings.server, port))
            secure, grpc_address = certificate is not None, a2a.grpc_address if a2a else None
            yield ListenAddresses(join_host_port(host, port), grpc_address, secure, metrics_url)
        finally:
            await drain_calls(listener, runner, a2a, settings.grpc.drain_seconds)


async def drain_calls(
    listener: http_listener.HttpListener, runner: web.AppRunner, a2a: A2aModule | None, seconds: float
) -> None:
    """Accept no more connections, let calls end, and then the tasks of A2A, for some seconds together."""
    # Tasks outlive their calls. The channel closes after all of them, because they use it.
    ends_at = time.monotonic() + seconds
    await listener.stop()
    await asyncio.gather(runner.cleanup(), *([a2a.stop(seconds)] if a2a else []))
    if a2a:
        await a2a.finish_tasks(ends_at - time.monotonic())


@asynccontextmanager
async def record_upstream_calls(settings: Settings) -> AsyncIterator[Sequence[grpc.aio.ClientInterceptor]]:
    """Yield the interceptors that record calls to the server, if the settings want traces. Raises ConfigError."""
    if settings.otlp.endpoint is None or not settings.otlp.traces:
        yield ()
        return
    # Not loaded without traces.
    from bridge.upstream_tracing import open_tracing, tracing_interceptors

    tracing = open_tracing(settings.otlp)
    try:
        yield tracing_interceptors(tracing)
    finally:
        # It waits for the collector.
        await asyncio.to_thread(tracing.stop)


def build_metrics(settings: Settings) -> BridgeMetrics | None:
    """Build the metrics of calls, if the settings enable them."""
    if settings.metrics.bridge_port is None:
        return None
    # Not loaded without metrics.
    from bridge.bridge_metrics import BridgeMetrics

    surfaces = {RPC_PATH: Surface.JSON_RPC}
    surfaces |= dict.fromkeys((streamed.path for streamed in event_streams.EVENT_STREAMS), Surface.EVENTS)
    a2a_prefix = None
    if settings.a2a.enabled:
        from bridge.a2a.agent_card import A2A_PATH
        from bridge.a2a.module import SURFACE_OF_PATH

        surfaces |= SURFACE_OF_PATH
        a2a_prefix = A2A_PATH
    return BridgeMetrics(surfaces, a2a_prefix)


def build_listener(
    runner: web.AppRunner,
    settings: ServerSettings,
    certificate: ServerCertificate | None,
    observe: http_listener.RequestObserver | None,
) -> http_listener.HttpListener:
    """Build the listener of an application, with TLS if there is a certificate."""
    assert runner.server is not None, "the runner is set up"
    return http_listener.HttpListener(
        runner.server,
        http_listener.limit_connections(settings.max_connections),
        settings.idle_seconds,
        certificate.https_context() if certificate else None,
        observe,
        access_log=None,
        logger=http_listener.quiet_logger("bridge.http"),
        # Security: compressed bodies are refused, and must not be unpacked before that, since a few bytes may become
        # gigabytes.
        auto_decompress=False,
    )


async def start_listener(
    listener: http_listener.HttpListener, settings: ServerSettings, *, reuse_port: bool
) -> tuple[str, int]:
    """Start to serve HTTP and return the address and the port. Raises CannotListen."""
    try:
        return await listener.start(settings.host, settings.port, reuse_port=reuse_port)
    except OSError as error:
        raise CannotListen(join_host_port(settings.host, settings.port), "server.port") from error


def public_bridge_url(settings: ServerSettings, port: int) -> str:
    """Return the bridge's URL for use without a request: the configured one, else its own address."""
    if settings.public_url:
        return validate_public_url(settings.public_url)
    return f"{'https' if settings.tls else 'http'}://{join_host_port(dial_host(settings.host), port)}"
