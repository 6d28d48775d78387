"""Asking several peers at once, with one deadline for all."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.protobuf.message import Message

from cstp_grpc.client.contract import Method
from cstp_grpc.client.federation import results
from cstp_grpc.client.federation.links import Cancel, Peer
from cstp_grpc.client.federation.results import Metadata, Result
from cstp_grpc.errors import CstpError
from cstp_grpc.vocabulary import PeerStatus


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of asking one peer: an answer where the status is ANSWERED, else an error where one is known."""

    agent: str
    status: PeerStatus
    answer: Message | None
    error: CstpError | None
    latency_ms: float


def gather(
    peers: Iterable[Peer],
    method: Method,
    request: Message,
    seconds: float,
    metadata: Metadata = (),
    clock: Callable[[], float] = time.monotonic,
    late: Callable[[Reply], None] | None = None,
    late_seconds: float = 0.0,
) -> list[Reply]:
    """Ask all peers at once and return what became of each, in the order of their names. Raises nothing.

    Each has its own timeout, and none more than `seconds`; who is not waited for any more timed out. With `late` it may
    take `late_seconds` all the same: `late` then gets its reply, whatever it is, once and on another thread.
    """
    return ask(peers, method, request, seconds, metadata, clock, late, late_seconds).replies()


def ask(
    peers: Iterable[Peer],
    method: Method,
    request: Message,
    seconds: float,
    metadata: Metadata = (),
    clock: Callable[[], float] = time.monotonic,
    late: Callable[[Reply], None] | None = None,
    late_seconds: float = 0.0,
    awaits: Callable[[str], bool] = lambda _: True,
) -> Asking:
    """Ask all peers at once, as `gather` does, without waiting for them; `replies` must follow. Raises nothing.

    `awaits` tells of a peer that is late, by its name, whether its reply is waited for at all.
    """
    asking = Asking(sorted(peers, key=lambda peer: peer.name), seconds, clock, late, awaits)
    asking.begin(method, request, metadata, late_seconds)
    return asking


class Asking:
    """The questions to some peers, and what became of them so far."""

    def __init__(
        self,
        peers: list[Peer],
        seconds: float,
        clock: Callable[[], float],
        late: Callable[[Reply], None] | None,
        awaits: Callable[[str], bool],
    ) -> None:
        self._peers = peers
        self._limits = [min(peer.timeout, seconds) for peer in peers]
        self._cancels: list[Cancel] = []
        self._clock = clock
        self._late = late
        self._awaits = awaits
        self._started = clock()
        self._changed = threading.Condition()
        self._replies: list[Reply | None] = [None] * len(peers)
        self._over = False
        self._notify: Callable[[], object] = self._changed.notify
        """Wakes who waits; called with the lock."""

    def begin(self, method: Method, request: Message, metadata: Metadata, late_seconds: float) -> None:
        """Ask all peers."""
        for at, (peer, limit) in enumerate(zip(self._peers, self._limits, strict=True)):
            seconds = limit if self._late is None else max(limit, late_seconds)
            self._cancels.append(peer.ask(method, request, seconds, metadata, self._take(at)))

    def replies(self) -> list[Reply]:
        """Wait, and return what became of each."""
        self._wait()
        return self._end(self._cancels)

    async def await_replies(self) -> list[Reply]:
        """Return what `replies` does, waiting on the running event loop; who is cancelled asks nobody any more."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._notify = lambda: loop.call_soon_threadsafe(changed.set)
        while self._goes_on():
            changed.clear()
            try:
                async with asyncio.timeout(self._seconds_left()):
                    await changed.wait()
            except TimeoutError:
                continue
            except asyncio.CancelledError:
                self.abandon()
                raise
        return self._end(self._cancels)

    def abandon(self) -> None:
        """Wait no longer for anybody; replies that are wanted late still come."""
        with self._changed:
            self._over = True
        self._end(self._cancels)

    def _take(self, at: int) -> Callable[[Result], None]:
        """Return what takes the result of one peer."""

        def take(result: Result) -> None:
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

    def _reply(self, at: int, result: Result) -> Reply:
        latency_ms = (self._clock() - self._started) * 1000
        return Reply(self._peers[at].name, result.status, result.answer, result.error, latency_ms)

    def _wait(self) -> None:
        """Wait for all replies, and for none longer than its limit."""
        with self._changed:
            while self._goes_on():
                self._changed.wait(self._seconds_left())

    def _goes_on(self) -> bool:
        """Tell whether a reply is still waited for; once it says no, replies are late."""
        with self._changed:
            self._over = self._seconds_left() <= 0
        return not self._over

    def _seconds_left(self) -> float:
        return self._started + self._limit() - self._clock()

    def _limit(self) -> float:
        """Return for how long it is waited: the greatest limit of those who have not replied, in seconds."""
        waiting = (limit for limit, reply in zip(self._limits, self._replies, strict=True) if reply is None)
        return max(waiting, default=-math.inf)

    def _end(self, cancels: list[Cancel]) -> list[Reply]:
        """Return the replies; who has not replied timed out."""
        found = []
        for at, (reply, cancel) in enumerate(zip(self._replies, cancels, strict=True)):
            if reply is None and (self._late is None or not self._awaits(self._peers[at].name)):
                cancel()
            found.append(reply or self._reply(at, results.TIMED_OUT))
        return found
