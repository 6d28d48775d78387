"""A2A in front of the server: its routes in the bridge's HTTP application, and its own gRPC port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import grpc
from aiohttp import web

from bridge.a2a.agent_card import AdvertisedPorts, AgentCardBuilder, AgentCardEndpoint
from bridge.a2a.call_context import A2aAccessCheck
from bridge.a2a.grpc_server import A2aGrpcServer
from bridge.a2a.jsonrpc_endpoint import A2aJsonRpcEndpoint
from bridge.a2a.request_handler import A2aRequestHandler, A2aServices
from bridge.a2a.rest_endpoint import REST_ROUTES, A2aRestEndpoint
from bridge.a2a.task_store import GrpcTaskStore
from bridge.call_observation import BridgeCallObserver, Surface
from bridge.http_request import AccessCheck, BodyReader, CallOriginReporter, PublicUrlResolver
from bridge.upstream import Forwarder, Upstream, is_secure_target
from cstp_grpc.common.version import VERSION
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import Settings, join_host_port

if TYPE_CHECKING:
    from cstp_grpc.contract.card_keys import SigningKey

logger = logging.getLogger(__name__)

CARD_PATH: Final = "/.well-known/agent-card.json"
OLD_CARD_PATH: Final = "/.well-known/agent.json"
"""The path of the card in the CSTP design, and in A2A before 0.3."""
READ_METHODS: Final = ("GET", "HEAD")
JSONRPC_PATHS: Final = ("/a2a", "/a2a/", "/")
"""The paths of A2A over JSON-RPC; the last is the `url` of the card at the old path."""
SURFACE_OF_PATH: Final[Mapping[str, Surface]] = {
    **dict.fromkeys(JSONRPC_PATHS, Surface.A2A_JSON_RPC),
    **dict.fromkeys((CARD_PATH, OLD_CARD_PATH), Surface.AGENT_CARD),
}
"""The surfaces of the paths outside A2A's HTTP+JSON."""
MIN_DRAIN_SECONDS: Final = 0.5
"""Minimum seconds for running tasks to end, even if calls used up the drain time. Chosen: storing a result takes
less."""


class A2aModule:
    """A2A over all its transports.

    The constructor binds the gRPC port, so that the agent card can name it; with a certificate it uses TLS, and
    `reuse_port` shares it with other bridges. Raises ConfigError and CannotListen.
    """

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        channel: grpc.aio.Channel,
        forwarder: Forwarder,
        certificate: ServerCertificate | None,
        origins: CallOriginReporter,
        observer: BridgeCallObserver,
        *,
        reuse_port: bool,
    ) -> None:
        self._settings = settings
        self._grpc_server = A2aGrpcServer(settings, certificate, reuse_port=reuse_port)
        announced = upstream.announced or upstream.target
        port = announced.rpartition(":")[2]
        cstp_port = int(port) if port.isdecimal() else settings.grpc.port
        ports = AdvertisedPorts(cstp_port, cstp_secure=is_secure_target(announced))
        methods = contract_methods(settings.disabled_services).values()
        cards = AgentCardBuilder(settings, VERSION, methods, ports, read_signing_key(settings))
        access = A2aAccessCheck(AccessCheck(forwarder))
        timeout = settings.server.timeout_seconds
        push_channel = channel if settings.a2a.push.enabled else None
        self._services = A2aServices(
            A2aRequestHandler(forwarder, access, GrpcTaskStore(channel, timeout), cards, settings, push_channel),
            access,
            BodyReader(access.fetch_access, settings.server),
            forwarder,
            cards,
            PublicUrlResolver(settings.server),
            origins,
            observer,
        )
        self._rest = A2aRestEndpoint(self._services)

    @property
    def grpc_address(self) -> str:
        return join_host_port(self._settings.a2a.grpc_host, self._grpc_server.port)

    @property
    def http_paths(self) -> Mapping[str, Iterable[str]]:
        cards = dict.fromkeys((CARD_PATH, OLD_CARD_PATH), READ_METHODS)
        return {**dict.fromkeys(JSONRPC_PATHS, ("POST",)), **REST_ROUTES, **cards}

    def install_routes(self, app: web.Application) -> None:
        jsonrpc = A2aJsonRpcEndpoint(self._services, self._settings.server)
        for path in JSONRPC_PATHS:
            app.router.add_post(path, jsonrpc.respond)
        self._rest.install(app)
        cards = AgentCardEndpoint(self._services.cards, self._services.address)
        app.router.add_get(CARD_PATH, cards.agent_card)
        app.router.add_get(OLD_CARD_PATH, cards.agent_json)

    def install_fallback(self, app: web.Application) -> None:
        self._rest.install_fallback(app)

    async def start(self, public_url: str) -> None:
        """Start to answer over gRPC; `public_url` is the address of the bridge on the extended card."""
        await self._grpc_server.start(self._services, public_url)

    async def stop(self, drain_seconds: float) -> None:
        """Let the calls over gRPC that are in progress end for up to `drain_seconds`, then cancel them."""
        await self._grpc_server.stop(drain_seconds)

    async def finish_tasks(self, seconds: float) -> None:
        """Wait up to this many seconds, and at least MIN_DRAIN_SECONDS, for running tasks."""
        seconds = max(seconds, MIN_DRAIN_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                # `asyncio.wait` behind it cancels nothing: what ends at the timeout is the wait, and not the tasks.
                await self._services.handler.aclose()
        except TimeoutError:
            logger.warning("some tasks are still at work after %g s; they will be shown as interrupted", seconds)


def read_signing_key(settings: Settings) -> SigningKey | None:
    """Read the key that signs the agent cards, or return None if none is configured. Raises ConfigError."""
    if settings.agent.card_signing is None:
        return None
    from cstp_grpc.contract.card_keys import SigningKey

    return SigningKey.load(settings.agent.card_signing, "agent.card_signing")
