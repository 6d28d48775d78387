"""Wiring of the state of the server, its peers and its agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cstp_grpc.core.audit.sql_activity import SqlAgentActivity
from cstp_grpc.core.tokens.sql_store import SqlTokenStore
from cstp_grpc.gen.cstp.v1 import status_pb2_grpc
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.status.known_agents import KnownAgents
from cstp_grpc.server.status.server_status import ServerStatusReader
from cstp_grpc.server.status.servicer import StatusService

if TYPE_CHECKING:
    from cstp_grpc.modules.federation.peer import Peer


def build_status_module(shared: SharedParts, status: ServerStatusReader, peers: Sequence[Peer]) -> Module:
    """Build the module that describes the server; without peers it does not load federation."""
    agents = KnownAgents(
        shared.settings.auth,
        shared.live_tokens,
        SqlTokenStore(shared.database),
        SqlAgentActivity(shared.database),
        shared.clock,
    )
    probe = None
    if peers:
        from cstp_grpc.server.status.peer_probe import PeerProbe

        probe = PeerProbe(peers, shared.settings.federation.peers)
    servicer = StatusService(agents, status, probe)
    return Module(servicers=[(status_pb2_grpc.add_StatusServiceServicer_to_server, servicer)])
