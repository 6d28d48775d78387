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
from cstp_grpc.federation import peer_transport
from cstp_grpc.federation.peer import CancelCall, Peer
from cstp_grpc.federation.peer_transport import CallMetadata, PeerCallResult


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
    `late`, peers may take up to `late_seconds`: `late` then gets the reply, whatever it is, once and on another
    thread.
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
    asking = PendingReplies(sorted(peers, key=lambda peer: peer.name), seconds, clock, late, awaits)
    asking.begin(method, request, metadata, late_seconds)
    return asking


class PendingReplies:
    """Calls to several peers in progress, and the replies received so far."""

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
        self._changed = threading.Condition()
        self._replies: list[PeerReply | None] = [None] * len(peers)
        self._over = False
        self._notify: Callable[[], object] = self._changed.notify
        """Wakes who waits; called with the lock."""

    def begin(self, method: RpcMethod, request: Message, metadata: CallMetadata, late_seconds: float) -> None:
        """Start the calls."""
        for at, (peer, limit) in enumerate(zip(self._peers, self._limits, strict=True)):
            seconds = limit if self._late is None else max(limit, late_seconds)
            self._cancels.append(peer.ask(method, request, seconds, metadata, self._take(at)))

    def replies(self) -> list[PeerReply]:
        """Wait, and return one reply per peer."""
        self._wait()
        return self._collect(self._cancels)

    async def await_replies(self) -> list[PeerReply]:
        """Wait as `replies` does, on the running event loop; cancellation cancels the calls."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._notify = lambda: loop.call_soon_threadsafe(changed.set)
        while self._keep_waiting():
            changed.clear()
            try:
                async with asyncio.timeout(self._seconds_left()):
                    await changed.wait()
            except TimeoutError:
                continue
            except asyncio.CancelledError:
                self.abandon()
                raise
        return self._collect(self._cancels)

    def abandon(self) -> None:
        """Stop waiting; late replies that are wanted still arrive."""
        with self._changed:
            self._over = True
        self._collect(self._cancels)

    def _take(self, at: int) -> Callable[[PeerCallResult], None]:
        """Return the callback for the result of one peer."""

        def take(result: PeerCallResult) -> None:
            reply = self._reply(at, result)
            with self._changed:
                in_time = not self._over
                if in_time:
                    self._replies[at] = reply
                    if self._limits[at] > self._limit():
                        self._notify()
            if not in_time and self._late is not None:
                self._late(reply)

        return take

    def _reply(self, at: int, result: PeerCallResult) -> PeerReply:
        latency_ms = (self._clock() - self._started) * 1000
        return PeerReply(self._peers[at].name, result.status, result.answer, result.error, latency_ms)

    def _wait(self) -> None:
        """Wait for all replies, for each at most its own limit."""
        with self._changed:
            while self._keep_waiting():
                self._changed.wait(self._seconds_left())

    def _keep_waiting(self) -> bool:
        """Return whether to keep waiting; after False, replies count as late."""
        with self._changed:
            self._over = self._seconds_left() <= 0
        return not self._over

    def _seconds_left(self) -> float:
        return self._started + self._limit() - self._clock()

    def _limit(self) -> float:
        """Return how long to wait in total: the greatest limit of the peers that have not replied, in seconds."""
        waiting = (limit for limit, reply in zip(self._limits, self._replies, strict=True) if reply is None)
        return max(waiting, default=-math.inf)

    def _collect(self, cancels: list[CancelCall]) -> list[PeerReply]:
        """Return the replies; peers that have not replied count as timed out."""
        found = []
        for at, (reply, cancel) in enumerate(zip(self._replies, cancels, strict=True)):
            if reply is None and (self._late is None or not self._awaits(self._peers[at].name)):
                cancel()
            found.append(reply or self._reply(at, peer_transport.TIMED_OUT_RESULT))
        return found
