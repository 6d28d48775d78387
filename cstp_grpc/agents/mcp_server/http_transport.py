"""Serving many hosts over streamable HTTP, each as the agent of its own bearer token."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext, BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.authentication import AuthenticationError
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from cstp_grpc.agents.mcp_server.client_pool import CallerVerifier, ClientPool, ClosableClient
from cstp_grpc.agents.mcp_server.event_store import SessionEventStore
from cstp_grpc.agents.mcp_server.server_setup import build_mcp_server
from cstp_grpc.contract.errors import CannotListen

PATH: Final = "/mcp"
LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Largest body of a request: that of the largest message of the contract."""
MAX_SESSIONS: Final = 256
"""Maximum number of open sessions; with the kept events of their streams they take at most about 256 MiB."""
MAX_AGENT_SESSIONS: Final = 32
"""Maximum number of open sessions of one agent. Chosen: an eighth, so that no agent locks the others out."""
SESSION_IDLE_SECONDS: Final = 30 * 60.0
RETRY_MS: Final = 1000
"""How long a host waits before it resumes a broken stream."""
MAX_CONNECTIONS: Final = 1024
STOP_SECONDS: Final = 3
"""Grace period for requests in flight when the server stops; streams that only listen never end by themselves."""


@dataclass(frozen=True)
class HttpOptions:
    """The address of the MCP server, and the limits on its callers."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 for any free port."""
    allowed_hosts: Sequence[str] = ()
    """Further accepted values of the header Host, after `host` and this machine's names; `name:*` for any port."""
    allowed_origins: Sequence[str] = ()
    """Further accepted values of the header Origin, after those of this machine; `https://name:*` for any port."""
    public_url: str = ""
    """The URL of the server for hosts, with its path; needed for `authorization_servers`."""
    authorization_servers: Sequence[str] = ()
    """The issuers whose tokens the server accepts, for hosts that look up where to get one (RFC 9728)."""
    max_sessions: int = MAX_SESSIONS
    """Maximum number of open sessions of all callers."""
    max_agent_sessions: int = MAX_AGENT_SESSIONS
    """Maximum number of open sessions of one agent."""

    def security_settings(self) -> TransportSecuritySettings:
        """Return the checks against scripts of other sites, which reach this machine through a user's browser."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        return TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=[*(f"{name}:*" for name in (*LOOPBACK_HOSTS, own)), *self.allowed_hosts],
            allowed_origins=[*(f"http://{name}:*" for name in LOOPBACK_HOSTS), *self.allowed_origins],
        )


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's manager, with an event store for each session, and a limit on the sessions of one agent.

    From a shared store, a host could read the events of another session, and streams of different sessions would
    have the same names, since streams are named after request numbers.
    """

    def __init__(self, app: Server[Any], options: HttpOptions) -> None:
        super().__init__(
            app,
            security_settings=options.security_settings(),
            retry_interval=RETRY_MS,
            session_idle_timeout=SESSION_IDLE_SECONDS,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=options.max_sessions,
        )
        self._max_agent_sessions = options.max_agent_sessions

    @property
    def event_store(self) -> EventStore:
        """A new store: the manager reads this once for each session that it opens."""
        return SessionEventStore()

    @event_store.setter
    def event_store(self, _: EventStore | None) -> None:
        """Ignore the manager's shared store."""

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Return the transport of a new session, or None if a limit is reached."""
        # The SDK has one limit for all callers. It admits sessions only here, under its lock.
        if sum(owner == requestor for owner in self._session_owners.values()) >= self._max_agent_sessions:
            return None
        return super()._admit_session(requestor)


class MessageServer(uvicorn.Server):
    """The HTTP server; its caller handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def build_http_app(pool: ClientPool, options: HttpOptions) -> Starlette:
    """Return the application. A request is authenticated before its body is read."""
    manager = SessionManager(build_mcp_server(pool), options)
    routes, metadata_url = describe_resource(options)
    guarded = RequireAuthMiddleware(StreamableHTTPASGIApp(manager), [], metadata_url)
    return Starlette(
        routes=[Route(PATH, endpoint=guarded), *routes],
        middleware=[
            Middleware(
                AuthenticationMiddleware, backend=BearerAuthBackend(CallerVerifier(pool)), on_error=answer_unavailable
            ),
            Middleware(AuthContextMiddleware),
        ],
        lifespan=lambda _: manager.run(),
    )


def describe_resource(options: HttpOptions) -> tuple[Sequence[BaseRoute], AnyHttpUrl | None]:
    """Return the routes that tell hosts where to get tokens, and their URL; empty without authorization servers."""
    if not options.authorization_servers:
        return (), None
    resource = AnyHttpUrl(options.public_url)
    issuers = [AnyHttpUrl(url) for url in options.authorization_servers]
    return create_protected_resource_routes(resource, issuers), build_resource_metadata_url(resource)


def answer_unavailable(_: HTTPConnection, error: AuthenticationError) -> JSONResponse:
    body = {"error": "temporarily_unavailable", "error_description": str(error)}
    return JSONResponse(body, status_code=503, headers={"Retry-After": "1"})


@asynccontextmanager
async def open_http_server(open_client: Callable[[str], ClosableClient], options: HttpOptions) -> AsyncIterator[str]:
    """Serve hosts within the block and yield the URL; `open_client` opens a token's client. Raises CannotListen."""
    pool = ClientPool(open_client)
    listener = open_listener(options)
    server = MessageServer(server_config(build_http_app(pool, options)))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        # Connections wait in the listener until the application has started.
        yield f"http://{format_address(listener)}{PATH}"
    finally:
        server.should_exit = True
        await serving
        await pool.close()


def server_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="on",
        # The other parser, httptools, leaves whitespace after header values, which are compared with bodies.
        http="h11",
        # Its log lines go to the log of the process, on standard error.
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def open_listener(options: HttpOptions) -> socket.socket:
    """Return a listening socket. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        raise CannotListen(f"{options.host}:{options.port}", "--port") from error


def format_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
