"""The services that all A2A transports share, built once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from bridge.a2a.agent_card import AdvertisedPorts, AgentCardBuilder
from bridge.a2a.call_context import A2aAccessCheck
from bridge.a2a.push_configs import GrpcPushConfigStore
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.a2a.task_store import GrpcTaskStore
from bridge.call_observation import BridgeCallObserver
from bridge.call_origin import CallOriginReporter
from bridge.http_request import AccessCheck, BodyReader, PublicUrlResolver
from bridge.upstream import Forwarder
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.config import Settings

if TYPE_CHECKING:
    from cstp_grpc.contract.card_keys import SigningKey


@dataclass(frozen=True, slots=True)
class A2aServices:
    """The parts that every A2A transport uses."""

    handler: A2aRequestHandler
    access: A2aAccessCheck
    bodies: BodyReader
    forwarder: Forwarder
    cards: AgentCardBuilder
    address: PublicUrlResolver
    origins: CallOriginReporter
    observer: BridgeCallObserver


def build_a2a_services(
    settings: Settings,
    version: str,
    channel: grpc.aio.Channel,
    forwarder: Forwarder,
    ports: AdvertisedPorts,
    origins: CallOriginReporter,
    observer: BridgeCallObserver,
) -> A2aServices:
    """Build the A2A services, which store everything at the other end of the channel. Raises ConfigError.

    `version` is that of the product.
    """
    methods = contract_methods(settings.disabled_services).values()
    cards = AgentCardBuilder(settings, version, methods, ports, read_signing_key(settings))
    access = A2aAccessCheck(AccessCheck(forwarder))
    timeout = settings.server.timeout_seconds
    push = GrpcPushConfigStore(channel, timeout) if settings.a2a.push.enabled else None
    handler = A2aRequestHandler(forwarder, access, GrpcTaskStore(channel, timeout), cards, settings, push)
    bodies = BodyReader(access.fetch_access, settings.server)
    address = PublicUrlResolver(settings.server)
    return A2aServices(handler, access, bodies, forwarder, cards, address, origins, observer)


def read_signing_key(settings: Settings) -> SigningKey | None:
    """Read the key that signs the agent cards, or return None if none is configured. Raises ConfigError."""
    if settings.agent.card_signing is None:
        return None
    from cstp_grpc.contract.card_keys import SigningKey

    return SigningKey.load(settings.agent.card_signing, "agent.card_signing")
