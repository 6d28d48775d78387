"""Decide whether a call asks peers, which ones, with which quorum and for how long; limit concurrent fan-outs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import Message

from cstp_grpc.contract.call_scope import HOP_METADATA_KEY, HopContext, asks_peers, reject_unknown_agents
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.enums import Stakes
from cstp_grpc.errors import RateLimited
from cstp_grpc.federation.fan_out import PeerReply, PendingReplies, start_peer_calls
from cstp_grpc.federation.peer import Peer
from cstp_grpc.federation.peer_responses import PeerResponse, agent_response_message, read_replies, unreadable_response
from cstp_grpc.gen.cstp.v1 import types_pb2

if TYPE_CHECKING:
    from cstp_grpc.federation.late_answers import LateReplyCollector


@dataclass(frozen=True, slots=True)
class CallSubject:
    """The category and stakes of a call; None if not stated."""

    category: str | None
    stakes: Stakes | None = None


@dataclass(frozen=True, slots=True)
class SubjectFilter:
    """A filter of subjects by categories and stakes; an empty set matches all."""

    categories: frozenset[str]
    stakes: frozenset[Stakes]

    def matches_all(self, subject: CallSubject) -> bool:
        """Whether a subject matches both the categories and the stakes."""
        of_category = not self.categories or subject.category in self.categories
        return of_category and (not self.stakes or subject.stakes in self.stakes)

    def matches_any(self, subject: CallSubject) -> bool:
        """Whether a subject matches one of the categories or one of the stakes."""
        return subject.category in self.categories or subject.stakes in self.stakes


@dataclass(frozen=True, slots=True)
class PeerPolicy:
    """The peers, the subjects that are federated if a call states no scope, and the quorums."""

    peers: Sequence[Peer]
    by_default: SubjectFilter
    quorums: Sequence[tuple[SubjectFilter, int]]

    def is_federated_by_default(self, subject: CallSubject) -> bool:
        """Whether a call without a scope asks peers."""
        return self.by_default.matches_any(subject)

    def select_peers(self, subject: CallSubject, names: Sequence[str], *, judging: bool) -> list[Peer]:
        """Return the peers that a call asks: those it names, else those responsible for its category.

        With `judging`, the required peers responsible for the category are always included. Raises InvalidArgument for
        an unknown name.
        """
        reject_unknown_agents(names, {peer.name for peer in self.peers})
        return [peer for peer in self.peers if is_selected(peer, subject, names, judging=judging)]

    def deciding_peers(self, subject: CallSubject, asked: Sequence[Peer]) -> frozenset[str]:
        """Return the names of the asked peers whose permission is needed, or who vote.

        In a vote these are the peers responsible for the category: a caller that names further peers must not add
        votes.
        """
        votes = self.quorum(subject) is not None
        return frozenset(peer.name for peer in asked if peer.required and (not votes or must_judge(peer, subject)))

    def quorum(self, subject: CallSubject) -> int | None:
        """Return how many required peers must allow an action, or None if each has a veto."""
        return next((allow for subjects, allow in self.quorums if subjects.matches_all(subject)), None)


def is_selected(peer: Peer, subject: CallSubject, names: Sequence[str], *, judging: bool) -> bool:
    """Whether a call asks a peer."""
    # First, so that naming other agents does not leave out a peer whose permission is needed.
    if judging and peer.required and must_judge(peer, subject):
        return True
    return peer.name in names if names else peer.speaks_for(subject.category or "")


def must_judge(peer: Peer, subject: CallSubject) -> bool:
    """Whether a required peer must evaluate a subject.

    Omitting the category does not bypass peers that are limited to some categories.
    """
    return subject.category is None or peer.speaks_for(subject.category)


AnswerT = TypeVar("AnswerT")

MARGIN_SHARE: Final = 0.1
"""The share of the caller's time kept for merging and for the audit entry, within the next two bounds."""
MIN_MARGIN_SECONDS: Final = 0.05
"""The least that is kept: the audit entry has to be committed within it, also for callers in a hurry."""
MAX_MARGIN_SECONDS: Final = 0.5
"""The most that is kept: merging takes no longer for callers with much time."""
BUSY_RETRY_SECONDS: Final = 0.5
"""The retry delay if too many calls wait for peers."""


@dataclass(frozen=True, slots=True)
class FanOutPlan:
    """The plan of one fan-out.

    `quorum` is how many of the `required` peers must allow the action, None if each has a veto. `left` returns the
    seconds left for the peers, `room` is the largest response of each in bytes.
    """

    peers: Sequence[Peer]
    required: Collection[str]
    hop_context: HopContext
    quorum: int | None
    left: Callable[[], float]
    room: int

    async def ask_peers(
        self, method: str, request: Message, late: LateReplyCollector | None = None
    ) -> list[PeerResponse]:
        """Ask the peers and return their responses; `late` handles replies that arrive too late."""
        return self._read(await self._ask(method, request, late).await_replies())

    async def ask_peers_while(
        self, method: str, request: Message, own: Awaitable[AnswerT]
    ) -> tuple[AnswerT, list[PeerResponse]]:
        """Await this agent's own answer while asking the peers; return both. Raises the errors of `own`."""
        pending = self._ask(method, request, None)
        try:
            answer = await own
        except Exception:
            # The peers have been asked and are busy with it, so the call keeps its slot: else a caller whose calls
            # fail here could have peers asked without a bound.
            await pending.await_replies()
            raise
        except asyncio.CancelledError:
            pending.abandon()
            raise
        return answer, self._read(await pending.await_replies())

    def _ask(self, method: str, request: Message, late: LateReplyCollector | None) -> PendingReplies:
        metadata = ((HOP_METADATA_KEY, self.hop_context.encode()),)
        if late is None:
            return start_peer_calls(self.peers, contract_methods()[method], request, self.left(), metadata)
        return start_peer_calls(
            self.peers,
            contract_methods()[method],
            request,
            self.left(),
            metadata,
            late=late.take,
            late_seconds=late.seconds,
            awaits=late.awaits,
        )

    def _read(self, replies: Sequence[PeerReply]) -> list[PeerResponse]:
        return [limit_response_size(self.room, answer) for answer in read_replies(replies, self.peers, self.required)]


@dataclass(frozen=True, slots=True)
class InboundHop:
    """The hop metadata and the deadline with which a call arrived.

    `hop_metadata` is None if missing; `remaining` returns the seconds until the caller's deadline, None without one.
    """

    hop_metadata: str | None
    remaining: Callable[[], float | None]


class FanOutLimiter:
    """Starts fan-outs to peers: at most `max_calls` at once, none for a call that loops.

    `name` is this agent's name; `seconds` bounds all peers together; `max_bytes` bounds the merged response.
    """

    def __init__(
        self, name: str, policy: PeerPolicy, *, max_hops: int, max_calls: int, seconds: float, max_bytes: int
    ) -> None:
        self._name = name
        self._policy = policy
        self._max_hops = max_hops
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._slots = threading.BoundedSemaphore(max_calls)
        self._lock = threading.Lock()
        self._calls_by_id: Counter[str] = Counter()
        """How many calls with each id are in progress here. Guarded by the lock."""

    def is_local(self, scope: types_pb2.Scope.ValueType, agents: Sequence[str], subject: CallSubject) -> bool:
        """Whether a call asks no peers, wherever it comes from. Raises InvalidArgument."""
        stated = asks_peers(scope, agents)
        return not (self._policy.is_federated_by_default(subject) if stated is None else stated)

    @contextmanager
    def plan_fan_out(
        self, call_id: str, subject: CallSubject, agents: Sequence[str], inbound: InboundHop, *, judging: bool
    ) -> Iterator[FanOutPlan | None]:
        """Yield the fan-out plan, or None if the call loops or selects no peer.

        With a quorum and no peers, the vote is held and fails. `call_id` identifies the same call at all agents;
        `agents` are the peers that it names. Raises InvalidArgument, and RateLimited if too many calls wait for peers.
        """
        relayed = HopContext.decode(inbound.hop_metadata)
        peers = self._policy.select_peers(subject, agents, judging=judging)
        quorum = self._policy.quorum(subject) if judging else None
        context = relayed or HopContext(call_id, self._max_hops)
        # The hop limit and the path end every loop of agents that pass the metadata on. The id ends what they cannot
        # see: the same call that arrives by a second way while the first is in progress, since neither path has this
        # agent. A caller of its own has no metadata, and may use an id as often as it likes.
        if (not peers and quorum is None) or context.hops == 0 or self._name in context.path:
            yield None
            return
        with self._count_call(context.id) as is_repeated:
            if relayed and is_repeated:
                yield None
                return
            # Only now: a call that loops must not be refused for lack of slots, which the call that it repeats may
            # hold itself.
            if not self._slots.acquire(blocking=False):
                raise RateLimited("Too many calls wait for peers; try again", retry_after=BUSY_RETRY_SECONDS)
            try:
                # The caller states the hops left; this agent's own limit bounds them.
                onward = replace(context, hops=min(context.hops, self._max_hops)).next_hop(self._name)
                required = self._policy.deciding_peers(subject, peers)
                # A peer's answer appears twice, by itself and merged; this agent's own is as long as one of them.
                room = self._max_bytes // (2 * (len(peers) + 1))
                yield FanOutPlan(peers, required, onward, quorum, lambda: self._seconds_left(inbound.remaining()), room)
            finally:
                self._slots.release()

    @contextmanager
    def _count_call(self, call_id: str) -> Iterator[bool]:
        """Count a call in progress, and yield whether another one with the same id was."""
        with self._lock:
            is_repeated = self._calls_by_id[call_id] > 0
            self._calls_by_id[call_id] += 1
        try:
            yield is_repeated
        finally:
            with self._lock:
                self._calls_by_id[call_id] -= 1
                # A Counter keeps keys with the count 0: ids come from callers, so that it would grow without end.
                if not self._calls_by_id[call_id]:
                    del self._calls_by_id[call_id]

    def _seconds_left(self, remaining: float | None) -> float:
        """Return the seconds that peers may take, so that the caller gets its response in time."""
        if remaining is None:
            return self._seconds
        margin = min(max(remaining * MARGIN_SHARE, MIN_MARGIN_SECONDS), MAX_MARGIN_SECONDS)
        return max(min(remaining - margin, self._seconds), 0.0)


def limit_response_size(room: int, answer: PeerResponse) -> PeerResponse:
    """Return a peer's response, or a failure if it is larger than `room`."""
    if answer.failure is not None or agent_response_message(answer).ByteSize() <= room:
        return answer
    return unreadable_response(answer, f"it has more than {room} bytes")
