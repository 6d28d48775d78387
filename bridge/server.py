"""The whole bridge: the HTTP server, A2A over gRPC, and what both share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http import HttpProcessingError

from bridge.a2a.agent_card import AdvertisedPorts
from bridge.a2a.grpc_server import A2aGrpcServer
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.a2a.services import build_a2a_services
from bridge.app import create_app
from bridge.http_listener import HttpListener, limit_connections
from bridge.http_request import validate_public_url
from bridge.upstream import Upstream, is_secure_target, open_channel
from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.config import ServerSettings, Settings, dial_host, join_host_port
from cstp_grpc.errors import CannotListen

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """The addresses on which the bridge listens, each as `host:port`."""

    http: str
    grpc: str
    """A2A over gRPC."""
    secure: bool
    """Whether both speak TLS."""

    @property
    def url(self) -> str:
        """The HTTP address as a URL."""
        return f"{url_scheme(secure=self.secure)}://{self.http}"


@asynccontextmanager
async def run_bridge(
    settings: Settings, upstream: Upstream, version: str, *, reuse_ports: bool = False
) -> AsyncIterator[ListenAddresses]:
    """Run the bridge to a server for the length of a block; `reuse_ports` shares its ports with other bridges.

    At the end it accepts nothing more, lets the requests in progress and then the tasks finish for up to
    `grpc.drain_seconds` together, and closes the channel last. Raises ConfigError and CannotListen.
    """
    certificate = ServerCertificate.load(settings.server.tls, "server.tls")
    async with open_channel(upstream.target, upstream.ca_file) as channel:
        grpc_server = A2aGrpcServer(settings, certificate, reuse_port=reuse_ports)
        announced = upstream.announced or upstream.target
        ports = AdvertisedPorts(
            target_port(announced, settings.grpc.port), grpc_server.port, cstp_secure=is_secure_target(announced)
        )
        peer = build_a2a_services(settings, version, channel, ports)
        runner = web.AppRunner(create_app(settings, channel, peer), shutdown_timeout=settings.grpc.drain_seconds)
        await runner.setup()
        listener = build_listener(runner, settings.server, certificate)
        try:
            host, port = await start_listener(listener, settings.server, reuse_port=reuse_ports)
            await grpc_server.start(peer, public_bridge_url(settings.server, port))
            yield ListenAddresses(
                http=join_host_port(host, port),
                grpc=join_host_port(settings.a2a.grpc_host, grpc_server.port),
                secure=certificate is not None,
            )
        finally:
            ends_at = time.monotonic() + settings.grpc.drain_seconds
            await listener.stop()
            await asyncio.gather(runner.cleanup(), grpc_server.stop(settings.grpc.drain_seconds))
            await finish_tasks(peer.conversations, max(ends_at - time.monotonic(), MIN_DRAIN_SECONDS))


MIN_DRAIN_SECONDS = 0.5
"""What the work on tasks has to end in any case."""


async def finish_tasks(conversations: A2aRequestHandler, seconds: float) -> None:
    """Wait up to this many seconds for running tasks."""
    try:
        async with asyncio.timeout(seconds):
            await conversations.aclose()
    except TimeoutError:
        logger.warning("some tasks are still at work after %g s; they will be shown as interrupted", seconds)


def build_listener(
    runner: web.AppRunner, settings: ServerSettings, certificate: ServerCertificate | None
) -> HttpListener:
    """Build the listener of an application, with TLS if there is a certificate."""
    assert runner.server is not None, "the runner is set up"
    return HttpListener(
        runner.server,
        limit_connections(settings.max_connections),
        settings.idle_seconds,
        certificate.https_context() if certificate else None,
        access_log=None,
        logger=http_server_logger(),
        # Compressed bodies are refused, so nothing of them must be unpacked while they are read off the connection.
        auto_decompress=False,
    )


async def start_listener(listener: HttpListener, settings: ServerSettings, *, reuse_port: bool) -> tuple[str, int]:
    """Start to serve HTTP and return the address and the port. Raises CannotListen."""
    try:
        return await listener.start(settings.host, settings.port, reuse_port=reuse_port)
    except OSError as error:
        raise CannotListen(join_host_port(settings.host, settings.port), "server.port") from error


def http_server_logger() -> logging.Logger:
    """Return the logger of the HTTP server, which does not quote malformed requests: they may hold a token."""
    log = logging.getLogger("bridge.http")
    log.addFilter(drop_malformed_request_record)
    return log


def drop_malformed_request_record(record: logging.LogRecord) -> bool:
    """Return whether a record may be logged; for a malformed request, log only that there was one."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    logger.info("a request that is no HTTP was refused")
    return False


def public_bridge_url(settings: ServerSettings, port: int) -> str:
    """Return the bridge's URL for use without a request: the configured one, else its own address."""
    if settings.public_url:
        return validate_public_url(settings.public_url)
    return f"{url_scheme(secure=settings.tls is not None)}://{join_host_port(dial_host(settings.host), port)}"


def url_scheme(*, secure: bool) -> str:
    """Return the scheme of the bridge's URLs."""
    return "https" if secure else "http"


def target_port(target: str, default: int) -> int:
    """Return the port of a gRPC target, or the default if it names none."""
    port = target.rpartition(":")[2]
    return int(port) if port.isdecimal() else default
