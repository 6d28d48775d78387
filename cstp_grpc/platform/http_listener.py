"""The connections of the HTTP server: how many may be open, and how long each may wait for a request."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError

logger = logging.getLogger(__name__)

SERVER_NAME: Final = "cstp"
"""The Server header. Security: aiohttp's default names the versions of Python and aiohttp."""
TRANSPORT_SECURITY: Final = "max-age=31536000"
"""A year, without other hosts of the domain, which the bridge does not know."""
CONTINUE_EXPECTATION: Final = "100-continue"
BACKLOG: Final = 1024
"""Connections that the kernel queues until they are accepted, if net.core.somaxconn allows as many. Chosen: beyond it,
clients' SYNs are dropped, and repeated after a second."""
RESERVED_DESCRIPTORS: Final = 256
"""Descriptors kept for everything but HTTP connections. Chosen: connections over gRPC, the channel, logs and pipes."""
EXHAUSTION_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
RETRY_SECONDS: Final = 1.0
"""Pause after a failed accept if no connection could be closed. Chosen: without it, the loop would fail on and on."""
LOG_INTERVAL_SECONDS: Final = 60.0
"""Minimum interval of log lines about closed connections, whose number an attacker decides."""


RequestObserver = Callable[[web.BaseRequest, web.StreamResponse, float], None]
"""Observes each request once it is answered: the request, its response, and the seconds that it took."""


class HttpConnection(web.RequestHandler):
    """An HTTP connection. Its answer to a malformed request quotes nothing of it, because that may be a token."""

    def __init__(
        self,
        server: web.Server,
        on_lost: Callable[[HttpConnection], None],
        observe: RequestObserver | None,
        **options: Any,
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._on_lost = on_lost
        self._observe = observe
        self.opening: asyncio.Task[None] | None = None
        """The task that opens the connection, including any TLS handshake."""
        self.request: web.BaseRequest | None = None
        """The request that is being answered."""
        self.started = 0.0
        """When its handler began, by `time.perf_counter`; the clock of uvloop has milliseconds."""

    @property
    def is_waiting(self) -> bool:
        """True if the connection has no complete request that is still to be answered."""
        return self.request is None or not self.request.content.is_eof()

    def abandon(self) -> None:
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()
        self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._on_lost(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            # A request that is not HTTP has an answer, but was never given to the handler.
            if self._observe is not None and self.request is not None:
                self._observe(request, resp, time.perf_counter() - self.started)
            self.request = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes the request
    ) -> web.StreamResponse:
        text = "400: Bad Request\n" if status == 400 else None
        response = super().handle_error(request, status, exc, text)
        response.headers[hdrs.SERVER] = SERVER_NAME
        return response


class HttpListener:
    """Accept connections for an HTTP server whose application is set up.

    At most `most` connections are open at once. Beyond that, the oldest connection that waits for a request is closed
    for each new one; if all are busy, the new one is closed. A connection has `idle_seconds` to be set up, and as long
    for the head of each request. `observe` gets each request; `options` are those of aiohttp's request handler.
    """

    def __init__(
        self,
        server: web.Server,
        most: int,
        idle_seconds: float,
        context: ssl.SSLContext | None,
        observe: RequestObserver | None = None,
        **options: Any,
    ) -> None:
        self._server = server
        self._most = most
        self._idle_seconds = idle_seconds
        self._context = context
        self._observe = observe
        self._options = {**options, "keepalive_timeout": idle_seconds}
        # A dict as an ordered set, oldest first. No lock: all of this runs on one event loop.
        self._open: dict[HttpConnection, None] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._sockets: list[socket.socket] = []
        self.closed_count = 0
        """How many connections were closed or refused for lack of room."""
        self._closed_when_noted = 0
        self._noted = -LOG_INTERVAL_SECONDS
        answer = server.request_handler

        async def respond(request: web.BaseRequest) -> web.StreamResponse:
            # aiohttp passes the request on to the connection only with its answer, and would repeat an unknown
            # expectation in an error.
            connection = cast("HttpConnection", request.protocol)
            connection.request = request
            connection.started = time.perf_counter()
            if request.headers.get(hdrs.EXPECT, CONTINUE_EXPECTATION).lower() != CONTINUE_EXPECTATION:
                return expectation_failed_response()
            return await answer(request)

        server.request_handler = respond

    @property
    def open_count(self) -> int:
        """How many connections are open; from any thread."""
        return len(self._open)

    @property
    def in_progress_count(self) -> int:
        """How many requests are being answered; from any thread."""
        # A copy, which is made in one step: other threads ask while the event loop opens and closes connections.
        return sum(connection.request is not None for connection in tuple(self._open))

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> tuple[str, int]:
        """Start to accept connections and return the address and the port; `reuse_port` shares it. Raises OSError."""
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(
            asyncio.Protocol, host, port, start_serving=False, reuse_port=reuse_port or None
        )
        self._sockets = [found.dup() for found in bound.sockets]
        # `create_server` is used only to bind, since it has no limit on open connections; `_accept` does the rest.
        bound.close()
        for found in self._sockets:
            found.settimeout(0)
            found.listen(BACKLOG)
        self._accepting = [loop.create_task(self._accept(found)) for found in self._sockets]
        address, number = self._sockets[0].getsockname()[:2]
        return address, number

    async def stop(self) -> None:
        """Stop accepting connections; open ones stay open."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for found in self._sockets:
            found.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # `sock_accept` returns without suspending while connections are queued. Without this pass of the loop
            # nothing else would run, and the sockets closed to make room would stay open.
            await asyncio.sleep(0)
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._note_closed(f"none can be accepted: {error.strerror}")
                has_room = error.errno in EXHAUSTION_ERRORS and self._close_waiting()
                await asyncio.sleep(0 if has_room else RETRY_SECONDS)
                continue
            if len(self._open) >= self._most:
                self._note_closed(f"{self._most} were open")
                if not self._close_waiting():
                    accepted.close()
                    continue
            connection = HttpConnection(self._server, self._forget, self._observe, **self._options)
            self._open[connection] = None
            connection.opening = loop.create_task(self._set_up(connection, accepted))
            connection.opening.add_done_callback(functools.partial(self._check_set_up, connection, accepted))

    async def _set_up(self, connection: HttpConnection, accepted: socket.socket) -> None:
        """Attach the socket to a connection and, with TLS, wait for the handshake."""
        seconds = self._idle_seconds if self._context else None
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=seconds
        )

    def _check_set_up(self, connection: HttpConnection, accepted: socket.socket, ended: asyncio.Task[None]) -> None:
        """Forget a connection whose set-up failed or was cancelled."""
        error = None if ended.cancelled() else ended.exception()
        if not ended.cancelled() and error is None:
            return
        # Here and not in `_set_up`: a task that is cancelled before its first step runs no code.
        accepted.close()
        self._forget(connection)
        if error is not None and not isinstance(error, OSError):
            logger.error("a connection could not be set up", exc_info=error)

    def _close_waiting(self) -> bool:
        """Close the oldest connection that waits for a request, and return whether there was one."""
        # The oldest is the least likely to send anything yet; closing the newest would let whoever opened all the
        # others first keep everybody else out.
        for connection in self._open:
            if connection.is_waiting:
                # Forgotten at once, because `connection_lost` comes only in a later pass of the loop.
                self._forget(connection)
                connection.abandon()
                return True
        return False

    def _forget(self, connection: HttpConnection) -> None:
        self._open.pop(connection, None)

    def _note_closed(self, reason: str) -> None:
        self.closed_count += 1
        now = asyncio.get_running_loop().time()
        if now - self._noted >= LOG_INTERVAL_SECONDS:
            recent = self.closed_count - self._closed_when_noted
            logger.warning("connections over HTTP closed or refused since the last such line: %d; %s", recent, reason)
            self._noted, self._closed_when_noted = now, self.closed_count


def expectation_failed_response() -> web.Response:
    """Return the response to a request with an unknown `Expect` header."""
    response = web.Response(status=417, text="417: Expectation Failed\n", headers={hdrs.SERVER: SERVER_NAME})
    response.force_close()
    return response


async def set_server_header(_: web.Request, response: web.StreamResponse) -> None:
    """Replace the Server header, whose default names versions."""
    response.headers[hdrs.SERVER] = SERVER_NAME


async def set_transport_security(_: web.Request, response: web.StreamResponse) -> None:
    """Tell browsers to call this host over TLS only (RFC 6797)."""
    response.headers[hdrs.STRICT_TRANSPORT_SECURITY] = TRANSPORT_SECURITY


def quiet_logger(name: str) -> logging.Logger:
    """Return the logger of an HTTP server, which does not quote malformed requests: they may hold a token."""
    log = logging.getLogger(name)
    log.addFilter(drop_malformed_request_record)
    return log


def drop_malformed_request_record(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    logger.info("a request that is not HTTP was refused")
    return False


def raise_descriptor_limit(connections: int) -> None:
    """Raise the soft limit of open files for this many connections, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def limit_connections(configured: int) -> int:
    """Return how many connections may be open: the configured number, or fewer if descriptors are scarce."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft - RESERVED_DESCRIPTORS >= configured:
        return configured
    # With very few descriptors half of them go to connections.
    fitting = max(soft - RESERVED_DESCRIPTORS, soft // 2)
    logger.warning(
        "server.max_connections is %d, of which %d fit: the process may open %d files", configured, fitting, soft
    )
    return fitting
