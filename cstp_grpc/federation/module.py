"""Wiring of federation from the settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from cstp_grpc.audit.model import AuditSink
from cstp_grpc.callbacks.outbox import CallbackOutbox
from cstp_grpc.client.trust_files import raise_config_errors, read_ca_file, read_card_keys
from cstp_grpc.config import FederationSettings, PeerSettings
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.federation.fan_out_plan import FanOutLimiter, PeerPolicy, SubjectFilter
from cstp_grpc.federation.late_answers import LateAnswerForwarder
from cstp_grpc.federation.peer import CircuitBreaker, Peer, open_peer
from cstp_grpc.federation.servicer import FederatedCstpService
from cstp_grpc.gen.cstp.v1 import cstp_pb2_grpc
from cstp_grpc.intents.module import IntentParts
from cstp_grpc.server_module import Module, SharedParts


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


def build_federation_module(
    shared: SharedParts,
    peers: Sequence[Peer],
    intents: IntentParts,
    read_policy: ReadPolicy,
    sink: AuditSink,
    callbacks: CallbackOutbox | None,
) -> Module:
    """Build the module that takes the place of that of intents, and also asks `peers` if a call or the settings say so.

    `callbacks` delivers late answers of peers to agents.
    """
    settings, federation = shared.settings, shared.settings.federation
    limiter = FanOutLimiter(
        settings.agent.name,
        build_peer_policy(federation, peers),
        max_hops=federation.max_hops,
        max_calls=federation.max_calls,
        seconds=federation.timeout_seconds,
        max_bytes=settings.grpc.max_message_bytes,
    )
    servicer = FederatedCstpService(
        settings.agent.name,
        intents.servicer,
        limiter,
        read_policy,
        sink,
        shared.clock,
        intents.limits,
        stores_content=settings.cstp.intent.store_received,
        late=LateAnswerForwarder(callbacks, federation.callbacks.late_seconds) if callbacks else None,
    )
    return Module(servicers=[(cstp_pb2_grpc.add_CstpServiceServicer_to_server, servicer)])


def build_peer_policy(settings: FederationSettings, peers: Sequence[Peer]) -> PeerPolicy:
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
