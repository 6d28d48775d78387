"""The HTTP application: JSON-RPC at /cstp, A2A, the agent cards and health."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc
from aiohttp import hdrs, web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bridge import liaison_events
from bridge.a2a.agent_card import AgentCardEndpoint
from bridge.a2a.jsonrpc_endpoint import A2aJsonRpcEndpoint
from bridge.a2a.rest_endpoint import REST_ROUTES, A2aRestEndpoint
from bridge.a2a.services import A2aServices
from bridge.http_listener import set_server_header
from bridge.http_response import Cors
from bridge.jsonrpc_endpoint import JsonRpcEndpoint
from bridge.liaison_events import LiaisonEventEndpoint
from cstp_grpc.config import Settings

logger = logging.getLogger(__name__)

RPC_PATH: Final = "/cstp"
CARD_PATH: Final = "/.well-known/agent-card.json"
OLD_CARD_PATH: Final = "/.well-known/agent.json"
"""Where the CSTP design has the card, and A2A had it before 0.3."""
HEALTH_PATH: Final = "/health"
READ_METHODS: Final = ("GET", "HEAD")
A2A_PATHS: Final = ("/a2a", "/a2a/", "/")
"""Where A2A is spoken over JSON-RPC; the last is the `url` of the card at the old path."""
HTTP_PATHS: Final = {
    RPC_PATH: ("POST",),
    **dict.fromkeys(A2A_PATHS, ("POST",)),
    **REST_ROUTES,
    CARD_PATH: READ_METHODS,
    OLD_CARD_PATH: READ_METHODS,
    HEALTH_PATH: READ_METHODS,
    liaison_events.EVENTS_PATH: ("GET",),
}

INDEX_SERVICE: Final = "index"
"""The name by which the server's health service knows its vector index."""
HEALTH_TIMEOUT: Final = 2.0
"""Seconds the server has to say that it is well."""


def create_app(settings: Settings, channel: grpc.aio.Channel, peer: A2aServices) -> web.Application:
    """Build the application, which forwards to the server at the other end of the channel.

    The caller closes the channel and the A2A services.
    """
    server = settings.server
    pages = AgentCardEndpoint(peer.cards, peer.address)
    app = web.Application(client_max_size=server.max_body_bytes)
    app.on_response_prepare.append(set_server_header)
    app.router.add_post(RPC_PATH, JsonRpcEndpoint(peer.forwarder, peer.gate, peer.bodies, server.max_batch).respond)
    a2a = A2aJsonRpcEndpoint(peer, server)
    for path in A2A_PATHS:
        app.router.add_post(path, a2a.respond)
    rest = A2aRestEndpoint(peer)
    rest.install(app)
    app.router.add_get(CARD_PATH, pages.agent_card)
    app.router.add_get(OLD_CARD_PATH, pages.agent_json)
    app.router.add_get(HEALTH_PATH, HealthEndpoint(channel).respond)
    LiaisonEventEndpoint(peer.forwarder, peer.gate).install(app)
    if server.cors_origins:
        Cors(server.cors_origins).install(app, HTTP_PATHS)
    rest.install_fallback(app)
    return app


class HealthEndpoint:
    """Answer whether the server behind the bridge is well; it needs no token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._health = health_pb2_grpc.HealthStub(channel)

    async def respond(self, _: web.Request) -> web.Response:
        """Report the health of the gRPC server and of its index; without the index the server is only slower."""
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
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            logger.info("the gRPC server does not answer: %s", error.details())
            return "unavailable"
        return "ok" if answer.status == health_pb2.HealthCheckResponse.SERVING else "unavailable"
