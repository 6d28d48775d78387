"""The HTTP application: JSON-RPC at /cstp, A2A, the agent cards and health."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc
from aiohttp import hdrs, web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bridge import http_request, jsonrpc, liaison_events
from bridge.a2a.agent_card import AgentCardEndpoint
from bridge.a2a.errors import UpstreamError
from bridge.a2a.jsonrpc_endpoint import A2aJsonRpcEndpoint
from bridge.a2a.rest_endpoint import REST_ROUTES, A2aRestEndpoint
from bridge.a2a.services import A2aServices
from bridge.admission import AccessCheck
from bridge.call_errors import unexpected_failure
from bridge.http_listener import set_server_header
from bridge.http_request import BodyReader
from bridge.http_response import Cors
from bridge.jsonrpc import JsonRpcEntry, JsonRpcOutcome
from bridge.liaison_events import LiaisonEventEndpoint
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.config import Settings
from cstp_grpc.errors import CstpError

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
TARGET_PILLAR: Final = "target_pillar"
MAX_PILLAR_LENGTH: Final = 63
"""Characters of the longest name that a pillar can be configured with."""
HEALTH_TIMEOUT: Final = 2.0
"""Seconds the server has to say that it is well."""


def create_app(settings: Settings, channel: grpc.aio.Channel, peer: A2aServices) -> web.Application:
    """Build the application, which forwards to the server at the other end of the channel.

    The caller closes the channel and the A2A services.
    """
    server = settings.server
    bridge = JsonRpcEndpoint(
        forwarder=peer.forwarder,
        gate=peer.gate,
        bodies=peer.bodies,
        health=health_pb2_grpc.HealthStub(channel),
        max_batch=server.max_batch,
    )
    pages = AgentCardEndpoint(peer.cards, peer.address)
    app = web.Application(client_max_size=server.max_body_bytes)
    app.on_response_prepare.append(set_server_header)
    app.router.add_post(RPC_PATH, bridge.answer_rpc)
    a2a = A2aJsonRpcEndpoint(peer, server)
    for path in A2A_PATHS:
        app.router.add_post(path, a2a.respond)
    rest = A2aRestEndpoint(peer)
    rest.install(app)
    app.router.add_get(CARD_PATH, pages.agent_card)
    app.router.add_get(OLD_CARD_PATH, pages.agent_json)
    app.router.add_get(HEALTH_PATH, bridge.answer_health)
    LiaisonEventEndpoint(peer.forwarder, peer.gate).install(app)
    if server.cors_origins:
        Cors(server.cors_origins).install(app, HTTP_PATHS)
    rest.install_fallback(app)
    return app


class JsonRpcEndpoint:
    """Answer JSON-RPC and health requests over HTTP."""

    def __init__(
        self,
        forwarder: Forwarder,
        gate: AccessCheck,
        bodies: BodyReader,
        health: health_pb2_grpc.HealthStub,
        max_batch: int,
    ) -> None:
        self._forwarder = forwarder
        self._gate = gate
        self._bodies = bodies
        self._health = health
        self._max_batch = max_batch

    async def answer_rpc(self, request: web.Request) -> web.Response:
        """Answer a JSON-RPC body."""
        request_id = http_request.read_request_id(request)
        metadata = http_request.request_metadata(request, request_id)
        try:
            body = jsonrpc.parse_body(await self._bodies.read(request, metadata), self._max_batch)
        except CstpError as failure:
            return body_error_response(failure, request_id)
        except UpstreamError as refused:
            return body_error_response(refused.failure, request_id)

        async def answer(call: JsonRpcEntry) -> JsonRpcOutcome:
            return await self._answer(call, metadata, request_id)

        return await jsonrpc.respond_to_body(body, answer, request_id)

    async def answer_health(self, _: web.Request) -> web.Response:
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

    async def _answer(self, call: JsonRpcEntry, metadata: Metadata, request_id: str) -> JsonRpcOutcome:
        """Execute a call and return its outcome."""
        if isinstance(call, jsonrpc.MalformedJsonRpcRequest):
            return JsonRpcOutcome(jsonrpc.encode_failure(call.id, call.failure, request_id), call.failure)
        try:
            value = await self._forwarder.call(call.method, call.params, metadata)
            return JsonRpcOutcome(None if call.id is None else jsonrpc.encode_result(call.id, value))
        except CstpError as caught:
            failure = await self._gate.visible_failure(caught, metadata)
        except Exception:
            logger.exception("%s %s failed in the bridge", request_id, call.method)
            failure = unexpected_failure()
        if call.id is None:
            return JsonRpcOutcome(None, failure)
        intent_type = self._forwarder.intent_type(call.method)
        target_pillar = read_target_pillar(call.params)
        return JsonRpcOutcome(jsonrpc.encode_failure(call.id, failure, request_id, intent_type, target_pillar), failure)


def body_error_response(failure: CstpError, request_id: str) -> web.Response:
    """Return the response to a body from which no call can be parsed."""
    return jsonrpc.json_response(
        jsonrpc.encode_utf8(jsonrpc.encode_failure("null", failure, request_id)), request_id, failure
    )


def read_target_pillar(params: dict[str, object] | list[object]) -> str | None:
    """Return the pillar that a call names, or None if it names none that could be one."""
    pillar = params.get(TARGET_PILLAR) if isinstance(params, dict) else None
    return pillar if isinstance(pillar, str) and len(pillar) <= MAX_PILLAR_LENGTH else None
