"""Wiring of federation from the settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime

from cstp_grpc.client.trust_files import raise_config_errors, read_ca_file, read_card_keys
from cstp_grpc.config import FederationSettings, PeerSettings, Settings
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.federation.fan_out_plan import FanOutLimiter, PeerPolicy, SubjectFilter
from cstp_grpc.federation.peer import CircuitBreaker, Peer, open_peer
from cstp_grpc.federation.servicer import FederatedCstpService, LateAnswerForwarder, LateAnswerSink, LocalCstpServicer
from cstp_grpc.intents.servicer import QueryLimits
from cstp_grpc.server.audit_adapters import AuditSink


def open_peers(opened: ExitStack, settings: FederationSettings) -> list[Peer]:
    """Open the configured peers without calling them; `opened` closes them. Raises ConfigError."""
    peers = []
    for number, configured in enumerate(settings.peers):
        peer = open_configured_peer(configured, settings, f"federation.peers.{number}")
        opened.callback(peer.close)
        peers.append(peer)
    return peers


def open_configured_peer(configured: PeerSettings, settings: FederationSettings, key: str) -> Peer:
    """Open a configured peer, which the caller must close; `key` names it in messages. Raises ConfigError."""
    card_keys = read_card_keys(configured.card_key, key)
    with raise_config_errors(key, configured.ca_file):
        return open_peer(
            configured.name,
            configured.url,
            configured.token.get_secret_value() if configured.token else None,
            required=configured.role == "required",
            trust=configured.trust,
            timeout=min(configured.timeout_seconds, settings.timeout_seconds),
            categories=frozenset(configured.categories),
            root_certificates=read_ca_file(configured.ca_file),
            card_keys=card_keys,
            breaker=CircuitBreaker(settings.breaker_failures, settings.breaker_seconds),
        )


def build_federated_servicer(
    settings: Settings,
    peers: list[Peer],
    alone: LocalCstpServicer,
    sharing: ReadPolicy,
    trail: AuditSink,
    clock: Callable[[], datetime],
    limits: QueryLimits,
    callbacks: LateAnswerSink | None,
) -> FederatedCstpService:
    """Build the servicer that also asks peers, if a call or the settings want that.

    `callbacks` delivers late answers of peers to agents.
    """
    federation = settings.federation
    rounds = FanOutLimiter(
        settings.agent.name,
        build_peer_policy(federation, peers),
        max_hops=federation.max_hops,
        max_calls=federation.max_calls,
        seconds=federation.timeout_seconds,
        max_bytes=settings.grpc.max_message_bytes,
    )
    stores_content = settings.cstp.intent.store_received
    late = LateAnswerForwarder(callbacks, federation.callbacks.late_seconds) if callbacks else None
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


def build_decision_sharing(settings: Settings) -> ReadPolicy:
    """Build the read policy: agents with a peer token, or the name of a peer, read only what is shared with peers."""
    named = {peer.name for peer in settings.federation.peers}
    peers = [token.name for token in settings.auth.tokens if token.peer or token.name in named]
    share = settings.federation.share
    return ReadPolicy.of(peers, share.categories, share.tags)


def build_peer_policy(settings: FederationSettings, peers: list[Peer]) -> PeerPolicy[Peer]:
    """Build the policy of which calls ask which peers, from the settings."""
    by_default = settings.default_for
    return PeerPolicy(
        peers,
        SubjectFilter(frozenset(by_default.categories), frozenset(by_default.stakes)),
        [
            (SubjectFilter(frozenset(quorum.categories), frozenset(quorum.stakes)), quorum.allow)
            for quorum in settings.quorums
        ],
    )
