"""The HTTP application: JSON-RPC at /cstp, A2A, the agent cards and health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import grpc
from aiohttp import hdrs, web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bridge.event_streams import (
    DECISIONS_PATH,
    INTENTS_PATH,
    LIAISON_EVENTS_PATH,
    DecisionEvents,
    EventStreamEndpoint,
    IntentEvents,
    LiaisonEvents,
)
from bridge.http_listener import set_server_header
from bridge.http_request import AccessCheck, BodyReader
from bridge.http_response import Cors
from bridge.jsonrpc import JsonRpcEndpoint
from bridge.upstream import Forwarder
from cstp_grpc.config import Settings

if TYPE_CHECKING:
    from bridge.a2a.module import A2aModule

logger = logging.getLogger(__name__)

RPC_PATH: Final = "/cstp"
HEALTH_PATH: Final = "/health"

INDEX_SERVICE: Final = "index"
"""The name of the vector index in the server's health service."""
HEALTH_TIMEOUT: Final = 2.0
"""Maximum seconds for the server's answer. Chosen: load balancers expect a health check to answer within a few."""


def create_app(
    settings: Settings, channel: grpc.aio.Channel, forwarder: Forwarder, a2a: A2aModule | None
) -> web.Application:
    """Build the application, which forwards to the server at the other end of the channel; None leaves A2A out.

    The caller closes the channel and stops A2A.
    """
    server = settings.server
    access = AccessCheck(forwarder)
    rpc = JsonRpcEndpoint(forwarder, access, BodyReader(access.fetch_access, server), server.max_batch)
    app = web.Application(client_max_size=server.max_body_bytes)
    app.on_response_prepare.append(set_server_header)
    app.router.add_post(RPC_PATH, rpc.respond)
    app.router.add_get(HEALTH_PATH, HealthEndpoint(channel).respond)
    EventStreamEndpoint(DecisionEvents(), forwarder, access).install(app)
    EventStreamEndpoint(IntentEvents(), forwarder, access).install(app)
    paths: dict[str, Iterable[str]] = {
        RPC_PATH: ("POST",),
        HEALTH_PATH: ("GET", "HEAD"),
        DECISIONS_PATH: ("GET",),
        INTENTS_PATH: ("GET",),
    }
    if settings.liaison.enabled:
        EventStreamEndpoint(LiaisonEvents(forwarder), forwarder, access).install(app)
        paths[LIAISON_EVENTS_PATH] = ("GET",)
    if a2a:
        a2a.install_routes(app)
        paths |= a2a.http_paths
    # Preflight routes come before the fallback below, whose routes take every method and so OPTIONS too.
    if server.cors_origins:
        Cors(server.cors_origins).install(app, paths)
    if a2a:
        a2a.install_fallback(app)
    return app


class HealthEndpoint:
    """Answer whether the server behind the bridge is well; it needs no token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._health = health_pb2_grpc.HealthStub(channel)

    async def respond(self, _: web.Request) -> web.Response:
        """Report the health of the gRPC server and of its index; without the index the server is only slower."""
        # The empty name asks for the server as a whole (gRPC health checking protocol).
        server, index = await asyncio.gather(self._state(""), self._state(INDEX_SERVICE))
        details = {"index": index} if index else {}
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
            # The health service answers NOT_FOUND for a name that was never registered, as the index is with
            # `index.mode: off`.
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            logger.info("the gRPC server does not answer: %s", error.details())
            return "unavailable"
        return "ok" if answer.status == health_pb2.HealthCheckResponse.SERVING else "unavailable"
