"""The whole console: its application, and running it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import nicegui
import uvicorn
from fastapi import FastAPI, Request
from fastapi.middleware.gzip import GZipMiddleware
from nicegui import Client, ui
from starlette.types import ASGIApp

from console import downloads
from console.frame import Screen, show_screen
from console.request_guard import Origins, RequestGuard
from console.screens import (
    approvals,
    audit,
    calibration,
    code_context,
    decisions,
    live,
    operations,
    overview,
    rulebooks,
)
from console.sessions import ServerTarget, SessionStore
from console.sign_in import ADVICE, SIGN_OUT_PATH, SignInRoutes
from console.view import View
from cstp_grpc.common.version import VERSION
from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import ConsoleSettings, dial_host, join_host_port

SCREENS: Final[Sequence[Screen]] = (
    *overview.SCREENS,
    *approvals.SCREENS,
    *decisions.SCREENS,
    *audit.SCREENS,
    *rulebooks.SCREENS,
    *live.SCREENS,
    *calibration.SCREENS,
    *code_context.SCREENS,
    *operations.SCREENS,
)
"""The screens in the order of the navigation."""
RESPONSE_SECONDS: Final = 30.0
SWEEP_SECONDS: Final = 15.0
"""Seconds between looks for sessions that have expired."""
MAX_CONNECTIONS: Final = 1000
STOP_SECONDS: Final = 2
FAVICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#1f4fc0"/>'
    '<path d="M9 16.5l5 5 9-11" fill="none" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>'
)


class ConsoleServer(uvicorn.Server):
    """The HTTP server; its caller handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def build_app(sessions: SessionStore, origins: Origins, advice: str = ADVICE) -> FastAPI:
    """Build the application, without its guard. NiceGUI has one for each process, so that this is called once."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    SignInRoutes(sessions, origins, advice).install(app)
    downloads.install_downloads(app)
    for screen in SCREENS:
        install_screen(screen)
    nicegui.app.config.socket_io_js_transports = ["websocket"]
    ui.add_head_html(f'<link rel="stylesheet" href="/console.css?v={VERSION}">', shared=True)
    ui.run_with(
        app,
        title="CSTP Console",
        favicon=FAVICON,
        dark=None,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10.0,
        # Compressed below, after the nonces are written.
        gzip_middleware_factory=None,
    )
    return app


def guard_app(app: FastAPI, sessions: SessionStore, origins: Origins) -> ASGIApp:
    """Return the application behind its guard."""
    paths = [*(screen.path for screen in SCREENS), SIGN_OUT_PATH, *downloads.PATHS]
    return GZipMiddleware(RequestGuard(app, sessions, origins, paths))


def install_screen(screen: Screen) -> None:
    """Serve a screen at its path."""

    async def show_page(request: Request) -> None:
        arguments = {**request.query_params, **request.path_params}
        view = View(request.state.session, request.url.path, arguments)
        await show_screen(screen, SCREENS, view)

    ui.page(screen.path, title=f"{screen.title} – CSTP", response_timeout=RESPONSE_SECONDS)(show_page)


@asynccontextmanager
async def run_console(
    settings: ConsoleSettings, server: ServerTarget, advice: str = ADVICE
) -> AsyncIterator[tuple[str, SessionStore]]:
    """Run the console for the length of a block, and yield its URL and its sessions.

    Raises ConfigError and CannotListen.
    """
    certificate = ServerCertificate.load(settings.tls, "console.tls")
    sessions = SessionStore(server, settings.idle_minutes * 60, settings.session_hours * 3600)
    listener = open_listener(settings)
    port = listener.getsockname()[1]
    origins = Origins.build(settings.host, port, settings.public_url, tls=certificate is not None)
    config = uvicorn.Config(
        guard_app(build_app(sessions, origins, advice), sessions, origins),
        lifespan="on",
        # Its log lines go to the log of the process.
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        ws_max_size=1_000_000,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    if certificate:
        config.ssl = certificate.https_context()
    http = ConsoleServer(config)
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    sweeping = asyncio.create_task(sweep_sessions(sessions))
    try:
        scheme = "https" if certificate else "http"
        own = f"{scheme}://{join_host_port(dial_host(settings.host), port)}"
        yield settings.public_url or own, sessions
    finally:
        sweeping.cancel()
        http.should_exit = True
        await serving
        await sessions.close()


async def sweep_sessions(sessions: SessionStore) -> None:
    """End sessions when they expire, and lead the pages of those that have ended to the sign-in."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        sessions.end_expired()
        for page in list(Client.instances.values()):
            with suppress(RuntimeError):
                session = page.request.scope.get("state", {}).get("session")
                if session is not None and session.ended.is_set():
                    page.open("/sign-in?ended=1")


def open_listener(settings: ConsoleSettings) -> socket.socket:
    """Return a listening socket. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise CannotListen(join_host_port(settings.host, settings.port), "console.port") from error
