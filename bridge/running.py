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

from bridge.a2a.cards import Ports
from bridge.a2a.conversations import Conversations
from bridge.a2a.grpc_server import A2aGrpcServer
from bridge.a2a.peer import build_peer
from bridge.app import create_app
from bridge.channel import Upstream, connect, is_secure
from bridge.connections import Listener, connections_that_fit
from bridge.forwarded import checked_url
from bridge.listening import CannotListen
from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.config import ServerSettings, Settings, join, reachable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the bridge listens, each as `host:port`."""

    http: str
    grpc: str
    """A2A over gRPC."""
    secure: bool
    """Whether both speak TLS."""

    @property
    def url(self) -> str:
        """The address over HTTP as a URL."""
        return f"{scheme(secure=self.secure)}://{self.http}"


@asynccontextmanager
async def running(
    settings: Settings, upstream: Upstream, version: str, *, reuse_ports: bool = False
) -> AsyncIterator[Addresses]:
    """Run the bridge to a server for the length of a block; `reuse_ports` shares its ports with other bridges.

    In the end it accepts nothing more, lets the requests in progress and then the work on tasks end for up to
    `grpc.drain_seconds` together, and closes the connection to the server last. Raises ConfigError and CannotListen.
    """
    certificate = ServerCertificate.of(settings.server.tls, "server.tls")
    async with connect(upstream.target, upstream.ca_file) as channel:
        grpc_server = A2aGrpcServer(settings, certificate, reuse_port=reuse_ports)
        announced = upstream.announced or upstream.target
        ports = Ports(port_in(announced, settings.grpc.port), grpc_server.port, cstp_secure=is_secure(announced))
        peer = build_peer(settings, version, channel, ports)
        runner = web.AppRunner(create_app(settings, channel, peer), shutdown_timeout=settings.grpc.drain_seconds)
        await runner.setup()
        listener = build_listener(runner, settings.server, certificate)
        try:
            host, port = await listen(listener, settings.server, reuse_port=reuse_ports)
            await grpc_server.start(peer, public_address(settings.server, port))
            yield Addresses(
                http=join(host, port),
                grpc=join(settings.a2a.grpc_host, grpc_server.port),
                secure=certificate is not None,
            )
        finally:
            ends_at = time.monotonic() + settings.grpc.drain_seconds
            await listener.stop()
            await asyncio.gather(runner.cleanup(), grpc_server.stop(settings.grpc.drain_seconds))
            await end_work(peer.conversations, max(ends_at - time.monotonic(), LEAST_SECONDS))


LEAST_SECONDS = 0.5
"""What the work on tasks has to end in any case."""


async def end_work(conversations: Conversations, seconds: float) -> None:
    """Wait up to so many seconds for the work on tasks."""
    try:
        async with asyncio.timeout(seconds):
            await conversations.aclose()
    except TimeoutError:
        logger.warning("some tasks are still at work after %g s; they will be shown as interrupted", seconds)


def build_listener(runner: web.AppRunner, settings: ServerSettings, certificate: ServerCertificate | None) -> Listener:
    """Return what accepts connections for an application, over TLS with a certificate."""
    assert runner.server is not None, "the runner is set up"
    return Listener(
        runner.server,
        connections_that_fit(settings.max_connections),
        settings.idle_seconds,
        certificate.https_context() if certificate else None,
        access_log=None,
        logger=server_log(),
        # Compressed bodies are refused, so nothing of them must be unpacked while they are read off the connection.
        auto_decompress=False,
    )


async def listen(listener: Listener, settings: ServerSettings, *, reuse_port: bool) -> tuple[str, int]:
    """Serve HTTP and return the address and the port. Raises CannotListen."""
    try:
        return await listener.start(settings.host, settings.port, reuse_port=reuse_port)
    except OSError as error:
        raise CannotListen(join(settings.host, settings.port), "server.port") from error


def server_log() -> logging.Logger:
    """Return the log of the HTTP server, which quotes nothing of malformed requests: it may be a token."""
    log = logging.getLogger("bridge.http")
    log.addFilter(quotes_nothing)
    return log


def quotes_nothing(record: logging.LogRecord) -> bool:
    """Whether a record can be written as it is; of a malformed request, say only that there was one."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    logger.info("a request that is no HTTP was refused")
    return False


def public_address(settings: ServerSettings, port: int) -> str:
    """Return the address of the bridge over HTTP where no request tells it: the configured one, else the own one."""
    if settings.public_url:
        return checked_url(settings.public_url)
    return f"{scheme(secure=settings.tls is not None)}://{join(reachable(settings.host), port)}"


def scheme(*, secure: bool) -> str:
    """Return the scheme of the bridge's URLs."""
    return "https" if secure else "http"


def port_in(target: str, default: int) -> int:
    """Return the port of a gRPC target, or the default where it names none."""
    port = target.rpartition(":")[2]
    return int(port) if port.isdecimal() else default
