"""The services that all A2A transports share, built once."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.a2a.agent_card import AgentCardBuilder
from bridge.a2a.call_context import A2aAccessCheck
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.call_observation import BridgeCallObserver
from bridge.http_request import BodyReader, CallOriginReporter, PublicUrlResolver
from bridge.upstream import Forwarder


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
