"""Call several peers concurrently, with one deadline for all."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.protobuf.message import Message

from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.enums import PeerStatus
from cstp_grpc.errors import CstpError
from cstp_grpc.federation.peer import CancelCall, Peer
from cstp_grpc.federation.peer_transport import TIMED_OUT_RESULT, CallMetadata, PeerCallResult


@dataclass(frozen=True, slots=True)
class PeerReply:
    """The result of calling one peer: an answer if the status is ANSWERED, else an error if one is known."""

    agent: str
    status: PeerStatus
    answer: Message | None
    error: CstpError | None
    latency_ms: float


def ask_peers(
    peers: Iterable[Peer],
    method: RpcMethod,
    request: Message,
    seconds: float,
    metadata: CallMetadata = (),
    clock: Callable[[], float] = time.monotonic,
    late: Callable[[PeerReply], None] | None = None,
    late_seconds: float = 0.0,
) -> list[PeerReply]:
    """Call all peers concurrently, wait, and return the result of each, ordered by name. Never raises.

    Each has its own timeout, at most `seconds`; a peer that has not responded by then is reported as timed out. With
    `late`, peers may take up to `late_seconds`: `late` then gets the reply, whatever it is, once and on another thread.
    """
    return start_peer_calls(peers, method, request, seconds, metadata, clock, late, late_seconds).replies()


def start_peer_calls(
    peers: Iterable[Peer],
    method: RpcMethod,
    request: Message,
    seconds: float,
    metadata: CallMetadata = (),
    clock: Callable[[], float] = time.monotonic,
    late: Callable[[PeerReply], None] | None = None,
    late_seconds: float = 0.0,
    awaits: Callable[[str], bool] = lambda _: True,
) -> PendingReplies:
    """Start calling all peers as `ask_peers` does, without waiting; `replies` must follow. Never raises.

    `awaits` returns for a peer that is late, by name, whether its reply is still wanted.
    """
    # Sorted, so that the merged response does not depend on the order of the settings.
    pending = PendingReplies(sorted(peers, key=lambda peer: peer.name), seconds, clock, late, awaits)
    pending.begin(method, request, metadata, late_seconds)
    return pending


class PendingReplies:
    """Calls to several peers in progress, and the replies received so far.

    Replies arrive on threads of the peers; one thread or one event loop waits for them. The condition guards the
    fields, and wakes a thread that waits.
    """

    def __init__(
        self,
        peers: list[Peer],
        seconds: float,
        clock: Callable[[], float],
        late: Callable[[PeerReply], None] | None,
        awaits: Callable[[str], bool],
    ) -> None:
        self._peers = peers
        self._limits = [min(peer.timeout, seconds) for peer in peers]
        self._cancels: list[CancelCall] = []
        self._clock = clock
        self._late = late
        self._awaits = awaits
        self._started = clock()
        # The condition's lock is an RLock, which `replies` holds while `_keep_waiting` takes it again.
        self._changed = threading.Condition()
        self._replies: list[PeerReply | None] = [None] * len(peers)
        self._is_over = False
        """Set once, when the wait ends: from then on replies are late. Whether one is in time and whether it is
        returned is decided under the same lock, so that no reply is both returned and late, or neither."""
        self._notify: Callable[[], object] = self._changed.notify
        """Wakes the one that waits; called with the lock."""

    def begin(self, method: RpcMethod, request: Message, metadata: CallMetadata, late_seconds: float) -> None:
        """Start the calls."""
        for index, (peer, limit) in enumerate(zip(self._peers, self._limits, strict=True)):
            # A call whose late answer is wanted goes on after this fan-out has stopped to wait for it.
            seconds = limit if self._late is None else max(limit, late_seconds)
            # A result may arrive on this thread before `ask` returns; it only fills in `_replies`.
            self._cancels.append(peer.ask(method, request, seconds, metadata, self._receiver(index)))

    def replies(self) -> list[PeerReply]:
        """Wait, and return one reply per peer."""
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
        """Return the callback for the result of one peer."""

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
                self._late(reply)

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
        """Return the replies; peers that have not replied count as timed out."""
        found = []
        for index, (reply, cancel) in enumerate(zip(self._replies, self._cancels, strict=True)):
            if reply is None and (self._late is None or not self._awaits(self._peers[index].name)):
                cancel()
            # Not read from the list again: cancelling reports a result, which counts as late and is dropped.
            found.append(reply or self._reply_of(index, TIMED_OUT_RESULT))
        return found
