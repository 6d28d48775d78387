"""Decide whether a call asks peers, which ones, with which quorum and for how long; ask them at once, and wait."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import Message

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.call_scope import HOP_METADATA_KEY, HopContext, asks_peers, reject_unknown_agents
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.contract.errors import RateLimited
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.gen.cstp.v1 import types_pb2
from cstp_grpc.modules.federation.peer import CancelCall, Peer, PeerReply
from cstp_grpc.modules.federation.peer_responses import (
    PeerResponse,
    agent_response_message,
    read_replies,
    unreadable_response,
)
from cstp_grpc.modules.federation.peer_transport import TIMED_OUT_RESULT, CallMetadata, PeerCallResult

if TYPE_CHECKING:
    from cstp_grpc.modules.federation.late_answers import LateReplyCollector


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
        of_category = not self.categories or subject.category in self.categories
        return of_category and (not self.stakes or subject.stakes in self.stakes)

    def matches_any(self, subject: CallSubject) -> bool:
        return subject.category in self.categories or subject.stakes in self.stakes


@dataclass(frozen=True, slots=True)
class PeerPolicy:
    """The peers, the subjects that are federated if a call states no scope, and the quorums."""

    peers: Sequence[Peer]
    by_default: SubjectFilter
    quorums: Sequence[tuple[SubjectFilter, int]]

    def select_peers(self, subject: CallSubject, names: Sequence[str], *, judging: bool) -> list[Peer]:
        """Return the peers that a call asks: those it names, else those responsible for its category.

        A search without a category asks all peers. With `judging`, the required peers responsible for the category are
        always included. Raises InvalidArgument for an unknown name.
        """
        reject_unknown_agents(names, {peer.name for peer in self.peers})
        return [peer for peer in self.peers if is_selected(peer, subject, names, judging=judging)]

    def deciding_peers(self, subject: CallSubject, asked: Sequence[Peer]) -> frozenset[str]:
        """Return the names of the asked peers whose permission is needed, or who vote.

        In a vote these are the peers responsible for the category: a caller that names further peers must not add
        votes.
        """
        votes = self.quorum(subject) is not None
        return frozenset(peer.name for peer in asked if peer.required and (not votes or may_concern(peer, subject)))

    def quorum(self, subject: CallSubject) -> int | None:
        """Return how many required peers must allow an action, or None if each has a veto."""
        return next((allow for subjects, allow in self.quorums if subjects.matches_all(subject)), None)


def is_selected(peer: Peer, subject: CallSubject, names: Sequence[str], *, judging: bool) -> bool:
    # First, so that naming other agents does not leave out a peer whose permission is needed.
    if judging and peer.required and may_concern(peer, subject):
        return True
    if names:
        return peer.name in names
    # A search without a category is about all of them. An action is not: advisory peers see only those of their own.
    return peer.speaks_for(subject.category or "") if judging else may_concern(peer, subject)


def may_concern(peer: Peer, subject: CallSubject) -> bool:
    """Whether a subject may be one of a peer's categories; omitting the category does not bypass the peer."""
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
        handler = None if late is None else LateReplyHandler(late.take, late.seconds, late.awaits)
        return PendingReplies(self.peers, contract_methods()[method], request, self.left(), metadata, late=handler)

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
        return not (self._policy.by_default.matches_any(subject) if stated is None else stated)

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
        # The hop limit and the path end every loop of agents that pass the metadata on. The id ends loops that they
        # cannot see: the same call that arrives by a second way while the first is in progress, since neither path has
        # this agent. A caller of its own has no metadata, and may use an id as often as it likes.
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


@dataclass(frozen=True, slots=True)
class LateReplyHandler:
    """Handling of replies that arrive after the wait: peers may take up to `seconds` in total.

    `take` gets each such reply, of any status, once and on another thread. `awaits` returns for a peer that is late,
    by name, whether its reply is still wanted.
    """

    take: Callable[[PeerReply], None]
    seconds: float
    awaits: Callable[[str], bool] = lambda _: True


class PendingReplies:
    """Calls to several peers in progress, and the replies received so far.

    The constructor starts the calls without waiting; `replies` or `await_replies` must follow. It never raises. Each
    peer has its own timeout, at most `seconds`; one that has not responded by then is reported as timed out.
    Replies arrive on threads of the peers; one thread or one event loop waits for them. The condition guards the
    fields, and wakes a thread that waits.
    """

    def __init__(
        self,
        peers: Iterable[Peer],
        method: RpcMethod,
        request: Message,
        seconds: float,
        metadata: CallMetadata = (),
        clock: Callable[[], float] = time.monotonic,
        late: LateReplyHandler | None = None,
    ) -> None:
        # Sorted, so that the merged response does not depend on the order of the settings.
        self._peers = sorted(peers, key=lambda peer: peer.name)
        self._limits = [min(peer.timeout, seconds) for peer in self._peers]
        self._cancels: list[CancelCall] = []
        self._clock = clock
        self._late = late
        self._started = clock()
        # The condition's lock is an RLock, which `replies` holds while `_keep_waiting` takes it again.
        self._changed = threading.Condition()
        self._replies: list[PeerReply | None] = [None] * len(self._peers)
        self._is_over = False
        """Set once, when the wait ends: from then on replies are late. Whether one is in time and whether it is
        returned is decided under the same lock, so that no reply is both returned and late, or neither."""
        self._notify: Callable[[], object] = self._changed.notify
        """Wakes the one that waits; called with the lock."""
        for index, (peer, limit) in enumerate(zip(self._peers, self._limits, strict=True)):
            # A call whose late answer is wanted goes on after this fan-out has stopped to wait for it.
            timeout = limit if late is None else max(limit, late.seconds)
            # A result may arrive on this thread before `ask` returns; it only fills in `_replies`.
            self._cancels.append(peer.ask(method, request, timeout, metadata, self._receiver(index)))

    def replies(self) -> list[PeerReply]:
        """Wait, and return the result of each peer, ordered by name."""
        with self._changed:
            while self._keep_waiting():
                self._changed.wait(self._seconds_left())
        return self._collect()

    async def await_replies(self) -> list[PeerReply]:
        """Wait as `replies` does, on the running event loop; cancellation cancels the calls."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            # Under the lock, since the calls have begun: a reply that came before is seen by `_keep_waiting`, and any
            # other sets the event. A loop cannot wait for a condition, and an event is set on its own thread only.
            self._notify = lambda: loop.call_soon_threadsafe(changed.set)
        while self._keep_waiting():
            # Cleared before the time left is computed from the replies: one that comes in between sets it again, which
            # at worst wakes once for nothing.
            changed.clear()
            try:
                async with asyncio.timeout(self._seconds_left()):
                    await changed.wait()
            except TimeoutError:
                continue
            except asyncio.CancelledError:
                self.abandon()
                raise
        return self._collect()

    def abandon(self) -> None:
        """Stop waiting; late replies that are wanted still arrive."""
        with self._changed:
            self._is_over = True
        self._collect()

    def _receiver(self, index: int) -> Callable[[PeerCallResult], None]:
        def receive(result: PeerCallResult) -> None:
            reply = self._reply_of(index, result)
            with self._changed:
                in_time = not self._is_over
                if in_time:
                    self._replies[index] = reply
                    # Only a peer that had the longest limit of those missing shortens the wait.
                    if self._limits[index] > self._longest_limit():
                        self._notify()
            # Without the lock: it may take long.
            if not in_time and self._late is not None:
                self._late.take(reply)

        return receive

    def _reply_of(self, index: int, result: PeerCallResult) -> PeerReply:
        latency_ms = (self._clock() - self._started) * 1000
        return PeerReply(self._peers[index].name, result.status, result.answer, result.error, latency_ms)

    def _keep_waiting(self) -> bool:
        """Return whether to keep waiting; after False, replies count as late."""
        with self._changed:
            self._is_over = self._seconds_left() <= 0
        return not self._is_over

    def _seconds_left(self) -> float:
        return self._started + self._longest_limit() - self._clock()

    def _longest_limit(self) -> float:
        """Return how long to wait in total: the greatest limit of the peers that have not replied, in seconds."""
        waiting = (limit for limit, reply in zip(self._limits, self._replies, strict=True) if reply is None)
        # Minus infinity ends the wait at once: everybody has replied.
        return max(waiting, default=-math.inf)

    def _collect(self) -> list[PeerReply]:
        found = []
        for index, (reply, cancel) in enumerate(zip(self._replies, self._cancels, strict=True)):
            if reply is None and (self._late is None or not self._late.awaits(self._peers[index].name)):
                cancel()
            # Not read from the list again: cancelling reports a result, which counts as late and is dropped.
            found.append(reply or self._reply_of(index, TIMED_OUT_RESULT))
        return found
