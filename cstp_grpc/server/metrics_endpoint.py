"""The HTTP endpoint from which Prometheus fetches metrics, on a port of its own."""

from __future__ import annotations

import asyncio
import hmac
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.config import join_host_port
from cstp_grpc.errors import CannotListen
from cstp_grpc.http_listener import HttpListener, quiet_logger, set_server_header, set_transport_security
from cstp_grpc.server.execution import EventLoopThread

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from cstp_grpc.config import MetricsSettings

METRICS_PATH: Final = "/metrics"
MAX_CONNECTIONS: Final = 16
"""Connections at once. Chosen: some servers of Prometheus and a person; beyond it the oldest idle one is closed."""
IDLE_SECONDS: Final = 120.0
"""How long a connection may wait for a request. Chosen: Prometheus keeps one between scrapes, which are at most
a minute apart."""


class MetricsEndpoint:
    """Serves metrics over HTTP on an event loop of its own, so that no call waits for them; a `BackgroundPart`.

    They are collected one scrape after the other, on a thread. `host` and `port` replace those of the settings for
    processes behind a supervisor, which speak no TLS. Raises ConfigError for an invalid certificate.
    """

    def __init__(self, collector: Collector, settings: MetricsSettings, inner_port: int | None = None) -> None:
        self._collector = collector
        self._host = settings.host if inner_port is None else "127.0.0.1"
        self._port = (settings.port or 0) if inner_port is None else inner_port
        self._token = None if settings.token is None else settings.token.get_secret_value().encode()
        self._certificate = ServerCertificate.load(settings.tls if inner_port is None else None, "metrics.tls")
        self._shares_port = inner_port is not None
        self._loop: EventLoopThread | None = None
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self._collecting = ThreadPoolExecutor(1, "metrics")
        self.url = ""
        """Where the metrics are, once it has started."""

    def start(self) -> None:
        """Listen. Raises CannotListen."""
        self._loop = EventLoopThread("metrics-loop")
        self._loop.start()
        try:
            self._loop.run(self._start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Answer no more, and close all connections."""
        if self._loop is not None:
            self._loop.run(self._stop())
            self._loop.stop()
            self._loop = None
        self._collecting.shutdown(cancel_futures=True)

    async def _start(self) -> None:
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
            logger=quiet_logger("cstp_grpc.server.metrics.http"),
        )
        try:
            host, port = await listener.start(self._host, self._port, reuse_port=self._shares_port)
        except OSError as error:
            raise CannotListen(join_host_port(self._host, self._port), "metrics.port") from error
        self._listener = listener
        self.url = f"{'https' if context else 'http'}://{join_host_port(host, port)}{METRICS_PATH}"

    async def _stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
        if self._runner is not None:
            await self._runner.cleanup()

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
