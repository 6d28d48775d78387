"""The HTTP endpoint from which Prometheus fetches metrics, on a port of its own."""

from __future__ import annotations

import asyncio
import hmac
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import join_host_port
from cstp_grpc.platform.http_listener import HttpListener, quiet_logger, set_server_header, set_transport_security

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from cstp_grpc.platform.config import MetricsSettings

METRICS_PATH: Final = "/metrics"
LOOPBACK: Final = "127.0.0.1"
MAX_CONNECTIONS: Final = 16
"""Connections at once. Chosen: some servers of Prometheus and a person; beyond it the oldest idle one is closed."""
IDLE_SECONDS: Final = 120.0
"""How long a connection may wait for a request. Chosen: Prometheus keeps one between scrapes, which are at most
a minute apart."""


@dataclass(frozen=True, slots=True)
class MetricsPort:
    """A port on which metrics are served."""

    number: int
    setting: str
    """The setting that it is from."""
    is_inner: bool = False
    """Whether a supervisor fetches them, on this machine and without TLS, to serve those of several processes."""


class MetricsEndpoint:
    """Serves metrics over HTTP on the event loop that starts it.

    They are collected one scrape after the other, on a thread. Raises ConfigError for an invalid certificate.
    """

    def __init__(self, collector: Collector, settings: MetricsSettings, port: MetricsPort) -> None:
        self._collector = collector
        self._host = LOOPBACK if port.is_inner else settings.host
        self._port = port
        self._token = None if settings.token is None else settings.token.get_secret_value().encode()
        self._certificate = ServerCertificate.load(None if port.is_inner else settings.tls, "metrics.tls")
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self._collecting = ThreadPoolExecutor(1, "metrics")
        self.url = ""
        """Where the metrics are, once it has started."""

    async def start(self) -> None:
        """Listen. Raises CannotListen."""
        app = web.Application()
        app.on_response_prepare.append(set_server_header)
        if self._certificate is not None:
            app.on_response_prepare.append(set_transport_security)
        app.router.add_get(METRICS_PATH, self._respond)
        # What is asked for takes milliseconds; nobody needs the rest of an answer when a server stops.
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        assert self._runner.server is not None, "the runner is set up"
        context = self._certificate.https_context() if self._certificate else None
        listener = HttpListener(
            self._runner.server,
            MAX_CONNECTIONS,
            IDLE_SECONDS,
            context,
            access_log=None,
            logger=quiet_logger("cstp_grpc.platform.telemetry.metrics.http"),
        )
        try:
            # The supervisor holds an inner port for the process that is to serve on it.
            host, port = await listener.start(self._host, self._port.number, reuse_port=self._port.is_inner)
        except OSError as error:
            raise CannotListen(join_host_port(self._host, self._port.number), self._port.setting) from error
        self._listener = listener
        self.url = f"{'https' if context else 'http'}://{join_host_port(host, port)}{METRICS_PATH}"

    async def stop(self) -> None:
        """Answer no more, and close all connections."""
        if self._listener is not None:
            await self._listener.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        # What is being collected may read what its process closes next.
        await asyncio.to_thread(self._collecting.shutdown, cancel_futures=True)

    async def _respond(self, request: web.Request) -> web.Response:
        if not self._is_authorized(request):
            return web.Response(status=401, text="401: Unauthorized\n", headers={hdrs.WWW_AUTHENTICATE: "Bearer"})
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))

        def collect() -> bytes:
            body: bytes = encode(self._collector)
            return body

        body = await asyncio.get_running_loop().run_in_executor(self._collecting, collect)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type, hdrs.CACHE_CONTROL: "no-store"})

    def _is_authorized(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        sent = request.headers.getall(hdrs.AUTHORIZATION, [])
        # Twice sent is refused: a proxy might have looked at the other one.
        if len(sent) != 1:
            return False
        scheme, _, token = sent[0].partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode("utf-8", "surrogateescape"), self._token
        )
