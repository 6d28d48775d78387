"""Federation from the settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime

from cstp_grpc.client.federation.breaker import CircuitBreaker
from cstp_grpc.client.federation.links import Peer, open_peer
from cstp_grpc.client.federation.policy import Matters, Policy
from cstp_grpc.client.federation.rounds import Rounds
from cstp_grpc.config import FederationSettings, PeerSettings, Settings
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.server.authorities import calling, read_authorities, read_card_keys
from cstp_grpc.server.trails import Trail
from cstp_grpc.services.cstp import QueryLimits
from cstp_grpc.services.federation import Alone, FederatedCstpService
from cstp_grpc.services.federation_late import Callbacks, LateAnswers


def open_peers(opened: ExitStack, settings: FederationSettings) -> list[Peer]:
    """Return the configured peers, which `opened` closes; none is called yet. Raises ConfigError."""
    peers = []
    for number, configured in enumerate(settings.peers):
        peer = peer_of(configured, settings, f"federation.peers.{number}")
        opened.callback(peer.close)
        peers.append(peer)
    return peers


def peer_of(configured: PeerSettings, settings: FederationSettings, key: str) -> Peer:
    """Return a configured peer, which must be closed; `key` names it in what is said. Raises ConfigError."""
    card_keys = read_card_keys(configured.card_key, key)
    with calling(key, configured.ca_file):
        return open_peer(
            configured.name,
            configured.url,
            configured.token.get_secret_value() if configured.token else None,
            required=configured.role == "required",
            trust=configured.trust,
            timeout=min(configured.timeout_seconds, settings.timeout_seconds),
            categories=frozenset(configured.categories),
            root_certificates=read_authorities(configured.ca_file),
            card_keys=card_keys,
            breaker=CircuitBreaker(settings.breaker_failures, settings.breaker_seconds),
        )


def federated(
    settings: Settings,
    peers: list[Peer],
    alone: Alone,
    sharing: Sharing,
    trail: Trail,
    clock: Callable[[], datetime],
    limits: QueryLimits,
    callbacks: Callbacks | None,
) -> FederatedCstpService:
    """Return the servicer that asks the peers too, where calls or the settings want it.

    `callbacks` tell agents what peers answer late.
    """
    federation = settings.federation
    rounds = Rounds(
        settings.agent.name,
        policy_of(federation, peers),
        max_hops=federation.max_hops,
        max_calls=federation.max_calls,
        seconds=federation.timeout_seconds,
        max_bytes=settings.grpc.max_message_bytes,
    )
    stores_content = settings.cstp.intent.store_received
    late = LateAnswers(callbacks, federation.callbacks.late_seconds) if callbacks else None
    return FederatedCstpService(
        settings.agent.name,
        alone,
        rounds,
        sharing,
        trail,
        clock,
        limits,
        stores_content=stores_content,
        late=late,
    )


def sharing_of(settings: Settings) -> Sharing:
    """Return who reads what: agents with a token of a peer, or named as one, find what is shared with peers."""
    named = {peer.name for peer in settings.federation.peers}
    peers = [token.name for token in settings.auth.tokens if token.peer or token.name in named]
    share = settings.federation.share
    return Sharing.of(peers, share.categories, share.tags)


def policy_of(settings: FederationSettings, peers: list[Peer]) -> Policy[Peer]:
    """Return what the settings say of which calls ask which peers."""
    by_default = settings.default_for
    return Policy(
        peers,
        Matters(frozenset(by_default.categories), frozenset(by_default.stakes)),
        [
            (Matters(frozenset(quorum.categories), frozenset(quorum.stakes)), quorum.allow)
            for quorum in settings.quorums
        ],
    )
