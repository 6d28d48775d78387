"""What peers answer to announcements after these were answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol

from cstp_grpc.client.codec import to_json
from cstp_grpc.client.federation.gather import Reply
from cstp_grpc.client.federation.links import Peer
from cstp_grpc.client.federation.replies import PeerAnswer, understand, without_memory
from cstp_grpc.client.federation.writing import response_of
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.vocabulary import PeerStatus

logger = logging.getLogger(__name__)

MOST: Final = 16
"""How many late answers are waited for at once; a peer has more places than that for calls that are in time."""


class Callbacks(Protocol):
    """Tells announcing agents what comes later."""

    def applies(self, url: str | None) -> bool:
        """Whether anything is told at an address."""

    def late(self, agent: str, correlation_id: str, revision: int, url: str, response: Mapping[str, Any]) -> None:
        """Take down what a peer answered late to a revision of an intent. Raises nothing."""


class LateAnswers:
    """Has late answers told to the agents that announced; peers may take `seconds` in all, and `most` at once."""

    def __init__(self, callbacks: Callbacks, seconds: float, most: int = MOST) -> None:
        self._callbacks = callbacks
        self._seconds = seconds
        self._places = threading.Semaphore(most)

    def of(
        self, request: cstp_pb2.AnnounceIntentRequest, revision: int, peers: Sequence[Peer], *, narrowed: bool
    ) -> LateReplies | None:
        """Return what takes the late answers to a revision of an intent; None where nobody is told of them.

        `narrowed` says that the caller is told nothing from the memories of peers.
        """
        agent, correlation_id = current_caller.get().agent, request.correlation_id
        url: str | None = convert.optional(request.agent, "url")
        if url is None or not self._callbacks.applies(url):
            return None

        def tell(answer: PeerAnswer) -> None:
            told = response_of(without_memory(answer) if narrowed else answer)
            self._callbacks.late(agent, correlation_id, revision, url, to_json(told))

        return LateReplies(peers, self._places, tell, self._seconds)


class LateReplies:
    """Takes the replies of peers that come too late for one announcement, as far as there are places for them."""

    def __init__(
        self,
        peers: Sequence[Peer],
        places: threading.Semaphore,
        tell: Callable[[PeerAnswer], None],
        seconds: float,
    ) -> None:
        self.seconds = seconds
        self._peers = {peer.name: peer for peer in peers}
        self._places = places
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._replied: set[str] = set()

    def awaits(self, agent: str) -> bool:
        """Whether the reply of a peer is waited for; it then has a place until it replies."""
        with self._lock:
            if agent in self._replied:
                return True
            if not self._places.acquire(blocking=False):
                logger.info("the answer of %s is not waited for: too many are late", agent)
                return False
            self._waiting.add(agent)
            return True

    def take(self, reply: Reply) -> None:
        """Take a late reply, and tell of it where it is an answer that can be understood."""
        peer = self._peers[reply.agent]
        with ExitStack() as afterwards:
            with self._lock:
                self._replied.add(reply.agent)
                if reply.agent in self._waiting:
                    afterwards.callback(self._places.release)
            answer = understand(reply, required=peer.required, trust=peer.trust)
            if answer.status is PeerStatus.ANSWERED:
                self._tell(answer)
