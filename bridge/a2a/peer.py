"""What the transports of A2A share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from bridge.a2a.cards import Cards, Ports
from bridge.a2a.conversations import Conversations
from bridge.a2a.gate import Gate
from bridge.a2a.push import PushService
from bridge.a2a.store import TaskStore
from bridge.bodies import BodyReader
from bridge.forwarded import PublicAddress
from bridge.methods import Forwarder
from cstp_grpc.client.contract import methods
from cstp_grpc.config import Settings

if TYPE_CHECKING:
    from cstp_grpc.card_keys import SigningKey


@dataclass(frozen=True, slots=True)
class Peer:
    """One agent as A2A sees it, whatever transport it is talked to by."""

    conversations: Conversations
    gate: Gate
    bodies: BodyReader
    forwarder: Forwarder
    cards: Cards
    address: PublicAddress


def build_peer(settings: Settings, version: str, channel: grpc.aio.Channel, ports: Ports) -> Peer:
    """Return the peer, which keeps everything at the other end of the channel. Raises ConfigError.

    `version` is that of the product.
    """
    contract = methods()
    timeout = settings.server.timeout_seconds
    forwarder = Forwarder(channel, contract, timeout)
    cards = Cards(settings, version, contract.values(), ports, read_signing_key(settings))
    gate = Gate(forwarder)
    push = PushService(channel, timeout) if settings.a2a.push.enabled else None
    conversations = Conversations(forwarder, gate, TaskStore(channel, timeout), cards, settings, push)
    bodies = BodyReader(gate, settings.server)
    return Peer(conversations, gate, bodies, forwarder, cards, PublicAddress(settings.server))


def read_signing_key(settings: Settings) -> SigningKey | None:
    """Return the key that signs the agent cards, None if none is configured. Raises ConfigError."""
    if settings.agent.card_signing is None:
        return None
    from cstp_grpc.card_keys import SigningKey

    return SigningKey.of(settings.agent.card_signing, "agent.card_signing")
