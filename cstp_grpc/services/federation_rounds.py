"""Calls that ask peers: which may, whom, and for how long."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import grpc
from google.protobuf.message import Message

from cstp_grpc.client.contract import methods
from cstp_grpc.client.federation.gather import Asking, ask
from cstp_grpc.client.federation.hops import METADATA_KEY, Journey
from cstp_grpc.client.federation.links import Peer
from cstp_grpc.client.federation.replies import PeerAnswer, understand
from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.services.federation_late import LateReplies
from cstp_grpc.services.federation_policy import Matter, Policy

LEAST_MARGIN: Final = 0.05
MOST_MARGIN: Final = 0.5
MARGIN: Final = 0.1
"""The part of the caller's time that is kept for merging and for the trail, within the two bounds in seconds."""
BUSY_SECONDS: Final = 0.5
"""After how long to call again where too many calls wait for peers."""

Request = cstp_pb2.AnnounceIntentRequest | cstp_pb2.QueryDecisionsRequest | cstp_pb2.CheckGuardrailsRequest


@dataclass(frozen=True, slots=True)
class Round:
    """One call that asks peers; `quorum` is how many required ones must allow it, None where each has a veto.

    `left` tells how many seconds they may take from now on.
    """

    peers: Sequence[Peer]
    journey: Journey
    quorum: int | None
    left: Callable[[], float]

    def ask(self, method: str, request: Message, late: LateReplies | None = None) -> Asking:
        """Begin to ask the peers; `late` takes what they reply too late."""
        metadata = ((METADATA_KEY, self.journey.encode()),)
        if late is None:
            return ask(self.peers, methods()[method], request, self.left(), metadata)
        return ask(
            self.peers,
            methods()[method],
            request,
            self.left(),
            metadata,
            late=late.take,
            late_seconds=late.seconds,
            awaits=late.awaits,
        )

    def answers(self, asking: Asking) -> list[PeerAnswer]:
        """Return what the peers answer in time."""
        roles = {peer.name: peer for peer in self.peers}
        return [
            understand(reply, required=roles[reply.agent].required, trust=roles[reply.agent].trust)
            for reply in asking.replies()
        ]


class Rounds:
    """Lets calls ask peers: not too many at once, and none that came here before."""

    def __init__(self, name: str, policy: Policy[Peer], *, max_hops: int, max_calls: int, seconds: float) -> None:
        self._name = name
        self._policy = policy
        self._max_hops = max_hops
        self._seconds = seconds
        self._places = threading.BoundedSemaphore(max_calls)
        self._entering = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def is_local(self, request: Request, matter: Matter) -> bool:
        """Whether a call asks nobody else, whatever its metadata says. Raises InvalidArgument."""
        if request.scope == types_pb2.SCOPE_LOCAL and request.agents:
            raise InvalidArgument.field("agents", "are asked where the scope is federated, and it is local")
        if request.scope or request.agents:
            return request.scope == types_pb2.SCOPE_LOCAL
        return not self._policy.is_federated_by_default(matter)

    @contextmanager
    def begin(
        self, request: Request, matter: Matter, context: grpc.ServicerContext, about: str, *, judging: bool
    ) -> Iterator[Round | None]:
        """Yield the round of a call; None where it came from agents that wait for this one, or nobody is to be asked.

        `about` is the same for the same call at all agents. Raises InvalidArgument, and Unavailable where too many
        calls wait for peers.
        """
        brought = Journey.decode(said(context))
        peers = self._policy.chosen(matter, request.agents, judging=judging)
        journey = brought or Journey(about, self._max_hops)
        onward = replace(journey, hops=min(journey.hops, self._max_hops)).onward(self._name)
        if not peers or journey.hops == 0 or self._name in journey.path:
            yield None
            return
        with self._held(journey.id) as first:
            if brought and not first:
                yield None
                return
            if not self._places.acquire(blocking=False):
                raise Unavailable("Too many calls wait for peers; try again", retry_after=BUSY_SECONDS)
            try:
                yield Round(
                    peers, onward, self._policy.quorum(matter) if judging else None, lambda: self._left(context)
                )
            finally:
                self._places.release()

    @contextmanager
    def _held(self, about: str) -> Iterator[bool]:
        """Note that a call is under way, and yield whether it is the only one about this."""
        with self._entering:
            self._under_way[about] += 1
            first = self._under_way[about] == 1
        try:
            yield first
        finally:
            with self._entering:
                self._under_way[about] -= 1
                if not self._under_way[about]:
                    del self._under_way[about]

    def _left(self, context: grpc.ServicerContext) -> float:
        """Return how many seconds peers may take, so that the caller gets an answer in time."""
        remaining: float | None = context.time_remaining()
        if remaining is None:
            return self._seconds
        margin = min(max(remaining * MARGIN, LEAST_MARGIN), MOST_MARGIN)
        return max(min(remaining - margin, self._seconds), 0.0)


def said(context: grpc.ServicerContext) -> str | None:
    """Return what a call's metadata says of its journey; None where it says nothing."""
    found = dict(context.invocation_metadata()).get(METADATA_KEY)
    return found.decode("latin-1") if isinstance(found, bytes) else found
