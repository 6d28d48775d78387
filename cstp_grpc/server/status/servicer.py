"""The servicer that describes the server, its peers and its agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.gen.cstp.v1 import status_pb2, status_pb2_grpc
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.server.status.known_agents import KnownAgent, KnownAgents
from cstp_grpc.server.status.server_status import ServerStatusReader

if TYPE_CHECKING:
    # Only for its type: a server without peers does not load federation.
    from cstp_grpc.server.status.peer_probe import PeerProbe

AGENT: Final = MessageMapper(KnownAgent, status_pb2.KnownAgent)
MAX_PROBE_SECONDS: Final = 30.0


class StatusService(status_pb2_grpc.StatusServiceServicer):
    """Serves cstp.v1.StatusService; `peers` is None on a server without peers."""

    def __init__(self, agents: KnownAgents, status: ServerStatusReader, peers: PeerProbe | None) -> None:
        self._agents = agents
        self._status = status
        self._peers = peers

    def ListAgents(
        self, request: status_pb2.ListAgentsRequest, context: grpc.ServicerContext
    ) -> status_pb2.ListAgentsResponse:
        page, since = self._agents.page(
            current_caller.get().tenant,
            proto_values.optional_field(request, "agent"),
            proto_values.datetime_field(request, "since"),
            PageRequest(request.page_size, request.page_token),
        )
        return status_pb2.ListAgentsResponse(
            agents=map(AGENT.encode, page.items),
            next_page_token=page.next_token,
            since=proto_values.timestamp_message(since),
        )

    async def ListPeers(
        self, request: status_pb2.ListPeersRequest, context: grpc.ServicerContext
    ) -> status_pb2.ListPeersResponse:
        if self._peers is None:
            return status_pb2.ListPeersResponse()
        seconds = request.timeout_seconds if request.HasField("timeout_seconds") else MAX_PROBE_SECONDS
        return status_pb2.ListPeersResponse(peers=await self._peers.probe(seconds))

    def GetServerStatus(
        self, request: status_pb2.GetServerStatusRequest, context: grpc.ServicerContext
    ) -> status_pb2.GetServerStatusResponse:
        return self._status.read()
