"""The HTTP application: JSON-RPC at /cstp, A2A, the agent cards, health."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc
from aiohttp import hdrs, web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bridge import calls, headers, jsonrpc, liaison_events
from bridge.a2a import rest
from bridge.a2a.errors import Refused
from bridge.a2a.gate import Gate
from bridge.a2a.jsonrpc import JsonRpc
from bridge.a2a.peer import Peer
from bridge.a2a.rest import Rest
from bridge.agent_card import CardPages
from bridge.bodies import BodyReader
from bridge.calls import Entry, Outcome
from bridge.connections import hide_versions
from bridge.cors import Cors
from bridge.liaison_events import LiaisonEvents
from bridge.methods import Forwarder, Metadata
from bridge.status import UNFORESEEN, Failure
from cstp_grpc.config import Settings

logger = logging.getLogger(__name__)

RPC_PATH: Final = "/cstp"
CARD_PATH: Final = "/.well-known/agent-card.json"
OLD_CARD_PATH: Final = "/.well-known/agent.json"
"""Where the CSTP design has the card, and A2A had it before 0.3."""
HEALTH_PATH: Final = "/health"
READ: Final = ("GET", "HEAD")
A2A_PATHS: Final = ("/a2a", "/a2a/", "/")
"""Where A2A is spoken over JSON-RPC; the last is the `url` of the card at the old path."""
PATHS: Final = {
    RPC_PATH: ("POST",),
    **dict.fromkeys(A2A_PATHS, ("POST",)),
    **rest.PATHS,
    CARD_PATH: READ,
    OLD_CARD_PATH: READ,
    HEALTH_PATH: READ,
    liaison_events.PATH: ("GET",),
}

INDEX: Final = "index"
"""The name by which the server's health service knows its vector index."""
TARGET_PILLAR: Final = "target_pillar"
MAX_PILLAR: Final = 63
"""Characters of the longest name that a pillar can be configured with."""
HEALTH_TIMEOUT: Final = 2.0
"""Seconds the server has to say that it is well."""


def create_app(settings: Settings, channel: grpc.aio.Channel, peer: Peer) -> web.Application:
    """Return the application, which forwards to the server at the other end of the channel.

    The channel and the peer stay the caller's to close.
    """
    server = settings.server
    bridge = Bridge(
        forwarder=peer.forwarder,
        gate=peer.gate,
        bodies=peer.bodies,
        health=health_pb2_grpc.HealthStub(channel),
        max_batch=server.max_batch,
    )
    pages = CardPages(peer.cards, peer.address)
    app = web.Application(client_max_size=server.max_body_bytes)
    app.on_response_prepare.append(hide_versions)
    app.router.add_post(RPC_PATH, bridge.rpc)
    a2a = JsonRpc(peer, server)
    for path in A2A_PATHS:
        app.router.add_post(path, a2a.respond)
    Rest(peer).install(app)
    app.router.add_get(CARD_PATH, pages.agent_card)
    app.router.add_get(OLD_CARD_PATH, pages.agent_json)
    app.router.add_get(HEALTH_PATH, bridge.health)
    LiaisonEvents(peer.forwarder, peer.gate).install(app)
    if server.cors_origins:
        Cors(server.cors_origins).install(app, PATHS)
    return app


class Bridge:
    """Answers HTTP requests."""

    def __init__(
        self,
        forwarder: Forwarder,
        gate: Gate,
        bodies: BodyReader,
        health: health_pb2_grpc.HealthStub,
        max_batch: int,
    ) -> None:
        self._forwarder = forwarder
        self._gate = gate
        self._bodies = bodies
        self._health = health
        self._max_batch = max_batch

    async def rpc(self, request: web.Request) -> web.Response:
        """Answer a JSON-RPC body."""
        request_id = headers.request_id_of(request)
        metadata = headers.metadata_of(request, request_id)
        try:
            body = jsonrpc.read(await self._bodies.read(request, metadata), self._max_batch)
        except Failure as failure:
            return refuse_body(failure, request_id)
        except Refused as refused:
            return refuse_body(refused.failure, request_id)

        async def answer(call: Entry) -> Outcome:
            return await self._answer(call, metadata, request_id)

        return await calls.respond(body, answer, request_id)

    async def health(self, _: web.Request) -> web.Response:
        """Answer whether the server behind the bridge is well, and its index, without which it is only slower."""
        server, index = await asyncio.gather(self._state(""), self._state(INDEX))
        details = {"index": index} if index else {}
        return web.json_response(
            {"status": server or "unavailable", **details},
            status=200 if server == "ok" else 503,
            headers={hdrs.CACHE_CONTROL: "no-store"},
        )

    async def _state(self, service: str) -> str | None:
        """Return `ok` or `unavailable` for a service of the server; None where it does not know it."""
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(service=service), timeout=HEALTH_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            logger.info("the gRPC server does not answer: %s", error.details())
            return "unavailable"
        return "ok" if answer.status == health_pb2.HealthCheckResponse.SERVING else "unavailable"

    async def _answer(self, call: Entry, metadata: Metadata, request_id: str) -> Outcome:
        """Return what became of a call."""
        if isinstance(call, jsonrpc.Invalid):
            return Outcome(jsonrpc.error(call.id, call.failure, request_id), call.failure)
        try:
            value = await self._forwarder.call(call.method, call.params, metadata)
            return Outcome(None if call.id is None else jsonrpc.result(call.id, value))
        except Failure as caught:
            failure = await self._gate.judge_failure(caught, metadata)
        except Exception:
            logger.exception("%s %s failed in the bridge", request_id, call.method)
            failure = Failure(*UNFORESEEN)
        if call.id is None:
            return Outcome(None, failure)
        intent_type = self._forwarder.intent_type(call.method)
        target_pillar = read_target_pillar(call.params)
        return Outcome(jsonrpc.error(call.id, failure, request_id, intent_type, target_pillar), failure)


def refuse_body(failure: Failure, request_id: str) -> web.Response:
    """Return the answer to a body of which no call can be read."""
    return headers.respond(jsonrpc.to_bytes(jsonrpc.error("null", failure, request_id)), request_id, failure)


def read_target_pillar(params: dict[str, object] | list[object]) -> str | None:
    """Return the pillar that a call names; None if it names none that could be one."""
    pillar = params.get(TARGET_PILLAR) if isinstance(params, dict) else None
    return pillar if isinstance(pillar, str) and len(pillar) <= MAX_PILLAR else None
