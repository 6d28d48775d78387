"""Wiring of federation from the settings."""

from __future__ import annotations

from collections.abc import Sequence

from cstp_grpc.common.measures import Measure, Readings
from cstp_grpc.gen.cstp.v1 import cstp_pb2_grpc
from cstp_grpc.modules.callbacks.outbox import CallbackOutbox
from cstp_grpc.modules.federation.fan_out import FanOutLimiter, PeerPolicy, SubjectFilter
from cstp_grpc.modules.federation.late_answers import LateAnswerForwarder
from cstp_grpc.modules.federation.peer import BreakerState, Peer
from cstp_grpc.modules.federation.servicer import FederatedCstpService
from cstp_grpc.platform.config import FederationSettings
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.wiring.intents import IntentParts


def build_federation_module(
    shared: SharedParts, peers: Sequence[Peer], intents: IntentParts, callbacks: CallbackOutbox | None
) -> tuple[Module, FederatedCstpService]:
    """Build the module that replaces that of intents, and also asks `peers` if a call or the settings require it.

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
        shared.read_policy,
        shared.sink,
        shared.clock,
        stores_content=settings.cstp.intent.store_received,
        late=LateAnswerForwarder(callbacks, federation.callbacks.late_seconds) if callbacks else None,
    )
    module = Module(
        servicers=[(cstp_pb2_grpc.add_CstpServiceServicer_to_server, servicer)], measures=build_peer_measures(peers)
    )
    return module, servicer


def build_peer_measures(peers: Sequence[Peer]) -> list[Measure]:
    """Build the figures of the configured peers."""

    def read_breakers() -> Readings:
        return {(peer.name, state.value): peer.breaker_state is state for peer in peers for state in BreakerState}

    def read_calls() -> Readings:
        return {(peer.name,): peer.calls_in_progress for peer in peers}

    return [
        Measure(
            "peer_breaker_state",
            "The state of the circuit breaker of a peer, 1 for the one that it has: closed, open or half_open.",
            read_breakers,
            ("peer", "state"),
        ),
        Measure("peer_calls_in_progress", "Calls that wait for a peer.", read_calls, ("peer",)),
    ]


def build_peer_policy(settings: FederationSettings, peers: Sequence[Peer]) -> PeerPolicy:
    """Build the policy that chooses the peers of a call, from the settings."""
    by_default = settings.default_for
    return PeerPolicy(
        peers,
        SubjectFilter(frozenset(by_default.categories), frozenset(by_default.stakes)),
        [
            (SubjectFilter(frozenset(quorum.categories), frozenset(quorum.stakes)), quorum.allow)
            for quorum in settings.quorums
        ],
    )
