"""Forward the answers of peers that arrive after the response, to agents that take callbacks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.modules.callbacks.outbox import CallbackOutbox
from cstp_grpc.modules.federation import peer_responses
from cstp_grpc.modules.federation.peer import Peer, PeerReply

logger = logging.getLogger(__name__)

MAX_LATE_ANSWERS: Final = 16
"""Maximum number of late answers awaited at once: half of `peer.MAX_WAITING_CALLS`, so that a peer that is always late
keeps as many slots for calls that are in time."""


class LateAnswerForwarder:
    """Forwards late answers to the announcing agents; peers may take `seconds` in total, and `max_awaited` at once."""

    def __init__(self, callbacks: CallbackOutbox, seconds: float, max_awaited: int = MAX_LATE_ANSWERS) -> None:
        self._callbacks = callbacks
        self._seconds = seconds
        self._slots = threading.Semaphore(max_awaited)

    def collector_for(
        self, request: cstp_pb2.AnnounceIntentRequest, revision: int, peers: Sequence[Peer], *, narrowed: bool
    ) -> LateReplyCollector | None:
        """Return the collector of late answers to a revision of an intent, or None if its agent gets no callbacks.

        `narrowed` omits the decisions of peers.
        """
        # Read here: late answers arrive on threads of the peers, which have no caller.
        agent, correlation_id = current_caller.get().agent, request.correlation_id
        url: str | None = proto_values.optional_field(request.agent, "url")
        if url is None or not self._callbacks.is_allowed(url):
            return None

        def forward(response: peer_responses.PeerResponse) -> None:
            message = peer_responses.agent_response_message(
                peer_responses.without_decisions(response) if narrowed else response
            )
            self._callbacks.queue_late_answer(agent, correlation_id, revision, url, to_json(message))

        return LateReplyCollector(peers, self._slots, forward, self._seconds)


class LateReplyCollector:
    """Collects the late replies of peers to one announcement, as far as slots are free; `forward` gets the answers."""

    def __init__(
        self,
        peers: Sequence[Peer],
        slots: threading.Semaphore,
        forward: Callable[[peer_responses.PeerResponse], None],
        seconds: float,
    ) -> None:
        self.seconds = seconds
        self._peers = {peer.name: peer for peer in peers}
        self._slots = slots
        self._forward = forward
        # Guards both sets: the call reads on its own thread, and peers report on theirs.
        self._lock = threading.Lock()
        # A reply may arrive between the end of the wait and the question whether it is awaited. Then `take` comes
        # first, and no slot may be acquired that nothing would release.
        self._waiting: set[str] = set()
        self._replied: set[str] = set()

    def awaits(self, agent: str) -> bool:
        """Return whether the reply of a peer is awaited; it then holds a slot until it arrives."""
        with self._lock:
            if agent in self._replied:
                return True
            if not self._slots.acquire(blocking=False):
                logger.info("the answer of %s is not waited for: too many are late", agent)
                return False
            self._waiting.add(agent)
            return True

    def take(self, reply: PeerReply) -> None:
        """Accept a late reply, and forward it if it is a valid answer."""
        peer = self._peers[reply.agent]
        with ExitStack() as afterwards:
            with self._lock:
                self._replied.add(reply.agent)
                if reply.agent in self._waiting:
                    # Also if forwarding fails, and only after it: the slots bound the queue as well.
                    afterwards.callback(self._slots.release)
            response = peer_responses.read_reply(reply, required=peer.required, trust=peer.trust)
            if response.status is PeerStatus.ANSWERED:
                self._forward(response)
