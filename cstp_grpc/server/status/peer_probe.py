"""Asks the configured peers for their health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.gen.cstp.v1 import access_pb2, status_pb2, types_pb2
from cstp_grpc.modules.federation.fan_out import PendingReplies
from cstp_grpc.modules.federation.peer import Peer, PeerReply
from cstp_grpc.modules.federation.peer_responses import read_access_reply
from cstp_grpc.platform.config import PeerSettings

PEER_STATUS = EnumMapping(types_pb2.PeerStatus, PeerStatus)


class PeerProbe:
    """Asks all peers at once; callers that come meanwhile share the answers, so that probes keep no peer busy."""

    def __init__(self, peers: Sequence[Peer], configured: Sequence[PeerSettings]) -> None:
        self._peers = peers
        self._configured = {each.name: each for each in configured}
        self._running: asyncio.Task[list[status_pb2.PeerHealth]] | None = None

    async def probe(self, seconds: float) -> list[status_pb2.PeerHealth]:
        """Return the health of the peers by name, each asked for up to `seconds` or its own timeout."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._ask(seconds))
        # Shielded: a caller that leaves does not cancel the probe of others.
        return await asyncio.shield(self._running)

    async def _ask(self, seconds: float) -> list[status_pb2.PeerHealth]:
        method = contract_methods()["cstp.getAccess"]
        replies = await PendingReplies(self._peers, method, access_pb2.GetAccessRequest(), seconds).await_replies()
        by_name = {peer.name: peer for peer in self._peers}
        return [self._describe(by_name[reply.agent], reply) for reply in replies]

    def _describe(self, peer: Peer, reply: PeerReply) -> status_pb2.PeerHealth:
        configured = self._configured[peer.name]
        read = read_access_reply(reply)
        health = status_pb2.PeerHealth(
            name=peer.name,
            url=configured.url,
            required=peer.required,
            categories=configured.categories,
            status=PEER_STATUS.number(reply.status),
            latency_ms=reply.latency_ms,
            missing_permissions=read.missing_permissions,
            breaker=peer.breaker_state.value,
            calls_in_progress=peer.calls_in_progress,
        )
        if read.access is not None:
            health.agent, health.version = read.access.agent, read.access.version
        if read.failure is not None:
            health.error = f"{read.failure.reason}: {read.failure.message}"
        return health
