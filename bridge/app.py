"""The HTTP application: JSON-RPC at /cstp, the agent cards, health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc
from aiohttp import hdrs, web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bridge import headers, jsonrpc
from bridge.a2a.cards import Cards, Ports
from bridge.agent_card import CardPages
from bridge.cors import Cors
from bridge.forwarded import PublicAddress
from bridge.methods import Forwarder, Metadata
from bridge.status import UNFORESEEN, Failure
from cstp_grpc.client.contract import methods
from cstp_grpc.config import AgentSettings, ServerSettings, Settings

logger = logging.getLogger(__name__)

RPC_PATH: Final = "/cstp"
CARD_PATH: Final = "/.well-known/agent-card.json"
OLD_CARD_PATH: Final = "/.well-known/agent.json"
"""Where the CSTP design has the card, and A2A had it before 0.3."""
HEALTH_PATH: Final = "/health"
READ: Final = ("GET", "HEAD")
PATHS: Final = {RPC_PATH: ("POST",), CARD_PATH: READ, OLD_CARD_PATH: READ, HEALTH_PATH: READ}

BATCH_CONCURRENCY: Final = 4
"""How many calls of one batch are in progress at once: half of the threads that a server has unless configured."""
INDEX: Final = "index"
"""The name by which the server's health service knows its vector index."""
HEALTH_TIMEOUT: Final = 2.0
"""Seconds the server has to say that it is well."""


Entry = jsonrpc.Call | jsonrpc.Invalid


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one call: its response, absent for a notification, and how it failed."""

    response: str | None
    failure: Failure | None = None


def create_app(
    settings: ServerSettings, agent: AgentSettings, version: str, channel: grpc.aio.Channel
) -> web.Application:
    """Return the application, which forwards to the server at the other end of the channel. Raises ConfigError.

    The channel stays the caller's to close.
    """
    contract = methods()
    whole = Settings(server=settings, agent=agent)
    cards = Cards(whole, version, contract.values(), Ports(cstp=whole.grpc.port, a2a=whole.a2a.grpc_port))
    pages = CardPages(cards, PublicAddress(settings))
    bridge = Bridge(
        forwarder=Forwarder(channel, contract, settings.timeout_seconds),
        health=health_pb2_grpc.HealthStub(channel),
        max_batch=settings.max_batch,
        timeout=settings.timeout_seconds,
    )
    app = web.Application(client_max_size=settings.max_body_bytes)
    app.router.add_post(RPC_PATH, bridge.rpc)
    app.router.add_get(CARD_PATH, pages.agent_card)
    app.router.add_get(OLD_CARD_PATH, pages.agent_json)
    app.router.add_get(HEALTH_PATH, bridge.health)
    if settings.cors_origins:
        Cors(settings.cors_origins).install(app, PATHS)
    return app


class Bridge:
    """Answers HTTP requests."""

    def __init__(
        self,
        forwarder: Forwarder,
        health: health_pb2_grpc.HealthStub,
        max_batch: int,
        timeout: float,
    ) -> None:
        self._forwarder = forwarder
        self._health = health
        self._max_batch = max_batch
        self._timeout = timeout

    async def rpc(self, request: web.Request) -> web.Response:
        """Answer a JSON-RPC body."""
        request_id = headers.request_id_of(request)
        try:
            body = jsonrpc.read(await read_json(request, self._timeout), self._max_batch)
        except Failure as failure:
            return headers.respond(jsonrpc.to_bytes(jsonrpc.error("null", failure, request_id)), request_id, failure)
        metadata = headers.metadata_of(request, request_id)
        if body.is_batch:
            return await self._batch(body.calls, metadata, request_id)
        outcome = await self._answer(body.calls[0], metadata, request_id)
        if outcome.response is None:
            return silent([outcome], request_id)
        return headers.respond(jsonrpc.to_bytes(outcome.response), request_id, outcome.failure)

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

    async def _batch(self, calls: Sequence[Entry], metadata: Metadata, request_id: str) -> web.Response:
        """Answer the calls of a batch, in their order."""
        places = asyncio.Semaphore(BATCH_CONCURRENCY)

        async def answer(call: Entry) -> Outcome:
            async with places:
                return await self._answer(call, metadata, request_id)

        outcomes = await asyncio.gather(*map(answer, calls))
        responses = [outcome.response for outcome in outcomes if outcome.response is not None]
        if responses:
            return headers.respond(jsonrpc.to_bytes(f"[{','.join(responses)}]"), request_id)
        return silent(outcomes, request_id)

    async def _answer(self, call: Entry, metadata: Metadata, request_id: str) -> Outcome:
        """Return what became of a call."""
        if isinstance(call, jsonrpc.Invalid):
            return Outcome(jsonrpc.error(call.id, call.failure, request_id), call.failure)
        try:
            value = await self._forwarder.call(call.method, call.params, metadata)
            return Outcome(None if call.id is None else jsonrpc.result(call.id, value))
        except Failure as caught:
            failure = caught
        except Exception:
            logger.exception("%s %s failed in the bridge", request_id, call.method)
            failure = Failure(*UNFORESEEN)
        return Outcome(None if call.id is None else jsonrpc.error(call.id, failure, request_id), failure)


async def read_json(request: web.Request, timeout: float) -> bytes:
    """Return the body of a request, which has `timeout` seconds to arrive.

    Raises Failure where HTTP itself has an answer for it: 400, 408, 413 or 415.
    """
    headers.require_json(request)
    try:
        async with asyncio.timeout(timeout):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise headers.unacceptable(413, "the body is larger than the bridge takes") from error
    except TimeoutError as error:
        raise headers.unacceptable(408, "the body did not arrive in time") from error
    except (web.RequestPayloadError, ConnectionResetError) as error:
        raise headers.unacceptable(400, "the body broke off") from error


def silent(outcomes: Sequence[Outcome], request_id: str) -> web.Response:
    """Answer notifications alone: without a body, and with 401 for a caller that the server does not know."""
    strangers = [found.failure for found in outcomes if found.failure and found.failure.row.http_status == 401]
    return headers.respond(None, request_id, strangers[0] if strangers else None)
