"""Calls that ask peers: which may, whom, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from cstp_grpc.client.contract import methods
from cstp_grpc.client.federation.gather import Asking, Reply, ask
from cstp_grpc.client.federation.hops import METADATA_KEY, Journey
from cstp_grpc.client.federation.links import Peer
from cstp_grpc.client.federation.policy import Matter, Policy
from cstp_grpc.client.federation.replies import PeerAnswer, not_understood, understood
from cstp_grpc.client.federation.writing import response_of
from cstp_grpc.errors import InvalidArgument, RateLimited
from cstp_grpc.gen.cstp.v1 import types_pb2

AnswerT = TypeVar("AnswerT")

LEAST_MARGIN: Final = 0.05
MOST_MARGIN: Final = 0.5
MARGIN: Final = 0.1
"""The part of the caller's time that is kept for merging and for the trail, within the two bounds in seconds."""
BUSY_SECONDS: Final = 0.5
"""After how long to call again where too many calls wait for peers."""


class Late(Protocol):
    """Takes what peers reply too late."""

    @property
    def seconds(self) -> float:
        """How long they may take for it."""

    def awaits(self, agent: str) -> bool:
        """Whether the reply of a peer is waited for."""

    def take(self, reply: Reply) -> None:
        """Take a reply."""


@dataclass(frozen=True, slots=True)
class Round:
    """One call that asks peers; `quorum` is how many of the `required` ones must allow it, None where each has a veto.

    `left` tells how many seconds they may take from now on, `room` how many bytes each may answer.
    """

    peers: Sequence[Peer]
    required: Collection[str]
    journey: Journey
    quorum: int | None
    left: Callable[[], float]
    room: int

    async def answers(self, method: str, request: Message, late: Late | None = None) -> list[PeerAnswer]:
        """Ask the peers and return what they answer in time; `late` takes what they reply too late."""
        return self._read(await self._ask(method, request, late).await_replies())

    async def answers_beside(
        self, method: str, request: Message, own: Awaitable[AnswerT]
    ) -> tuple[AnswerT, list[PeerAnswer]]:
        """Return an answer of this agent, and what the peers answer meanwhile. Raises what `own` raises."""
        asking = self._ask(method, request, None)
        try:
            answer = await own
        except Exception:
            # Calls that fail here keep their places too: peers are asked all the same.
            await asking.await_replies()
            raise
        except asyncio.CancelledError:
            asking.abandon()
            raise
        return answer, self._read(await asking.await_replies())

    def _ask(self, method: str, request: Message, late: Late | None) -> Asking:
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

    def _read(self, replies: Sequence[Reply]) -> list[PeerAnswer]:
        return [within(self.room, answer) for answer in understood(replies, self.peers, self.required)]


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a call came here.

    `said` is what its metadata says of its journey, None where that is nothing; `remaining` tells how many seconds its
    caller waits, None where it sets no bound.
    """

    said: str | None
    remaining: Callable[[], float | None]


class Rounds:
    """Lets calls ask peers: not too many at once, and none that came here before.

    `name` is the agent's whose calls these are, `seconds` how long all peers together may take, and `max_bytes` how
    large an answer may be in which theirs are merged.
    """

    def __init__(
        self, name: str, policy: Policy[Peer], *, max_hops: int, max_calls: int, seconds: float, max_bytes: int
    ) -> None:
        self._name = name
        self._policy = policy
        self._max_hops = max_hops
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._places = threading.BoundedSemaphore(max_calls)
        self._entering = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def is_local(self, scope: types_pb2.Scope.ValueType, agents: Sequence[str], matter: Matter) -> bool:
        """Whether a call asks nobody else, wherever it comes from. Raises InvalidArgument."""
        if scope == types_pb2.SCOPE_LOCAL and agents:
            raise InvalidArgument.field("agents", "are asked where the scope is federated, and it is local")
        if scope or agents:
            return scope == types_pb2.SCOPE_LOCAL
        return not self._policy.is_federated_by_default(matter)

    @contextmanager
    def begin(
        self, about: str, matter: Matter, agents: Sequence[str], arrival: Arrival, *, judging: bool
    ) -> Iterator[Round | None]:
        """Yield the round of a call; None where it came from agents that wait for this one, or nobody is to be asked.

        A vote is held where nobody has one too, and lost.
        `about` is the same for the same call at all agents; `agents` are those that it names. Raises InvalidArgument,
        and RateLimited where too many calls wait for peers.
        """
        brought = Journey.decode(arrival.said)
        peers = self._policy.chosen(matter, agents, judging=judging)
        quorum = self._policy.quorum(matter) if judging else None
        journey = brought or Journey(about, self._max_hops)
        nobody = not peers and quorum is None
        if nobody or journey.hops == 0 or self._name in journey.path:
            yield None
            return
        with self._under_way_with(journey.id) as others:
            if brought and others:
                yield None
                return
            if not self._places.acquire(blocking=False):
                raise RateLimited("Too many calls wait for peers; try again", retry_after=BUSY_SECONDS)
            try:
                onward = replace(journey, hops=min(journey.hops, self._max_hops)).onward(self._name)
                required = self._policy.deciding(matter, peers)
                # What a peer says is told twice, as its own and merged; this agent says as much as one of them.
                room = self._max_bytes // (2 * (len(peers) + 1))
                yield Round(peers, required, onward, quorum, lambda: self._left(arrival.remaining()), room)
            finally:
                self._places.release()

    @contextmanager
    def _under_way_with(self, about: str) -> Iterator[bool]:
        """Note that a call is under way, and yield whether others about the same were."""
        with self._entering:
            others = self._under_way[about] > 0
            self._under_way[about] += 1
        try:
            yield others
        finally:
            with self._entering:
                self._under_way[about] -= 1
                if not self._under_way[about]:
                    del self._under_way[about]

    def _left(self, remaining: float | None) -> float:
        """Return how many seconds peers may take, so that the caller gets an answer in time."""
        if remaining is None:
            return self._seconds
        margin = min(max(remaining * MARGIN, LEAST_MARGIN), MOST_MARGIN)
        return max(min(remaining - margin, self._seconds), 0.0)


def within(room: int, answer: PeerAnswer) -> PeerAnswer:
    """Return what a peer answered, or that it is larger than what is told on."""
    if answer.failure is not None or response_of(answer).ByteSize() <= room:
        return answer
    return not_understood(answer, f"it has more than {room} bytes")
