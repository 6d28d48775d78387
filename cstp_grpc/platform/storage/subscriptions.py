"""Subscriptions that follow stored items, bounded in number, without a thread while they wait."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Generic, Self, TypeVar
from weakref import WeakSet

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import RateLimited, Unavailable
from cstp_grpc.platform.storage.background_work import RunBlocking

ItemT = TypeVar("ItemT")
ConditionsT = TypeVar("ConditionsT")

READ_BATCH = 100
"""Items that a subscription reads at a time. Chosen: it holds so many in memory, whatever its client reads."""


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """How many subscriptions may be open in all and for each owner, and the names of these settings.

    A subscription whose reader takes nothing for `stalled_seconds` ends; None lets it wait.
    """

    most: int
    per_owner: int
    most_setting: str
    per_owner_setting: str
    stalled_seconds: float | None = None


class ChangeFeed(ABC, Generic[ItemT, ConditionsT]):
    """Notifies a bounded number of subscriptions of changes, which they read from a store.

    Subscriptions also poll every `refresh_seconds`. They wait on event loops and read by `run_blocking`; functions that
    are not coroutines may be called from any thread.
    """

    def __init__(self, limits: WatchLimits, refresh_seconds: float | None, run_blocking: RunBlocking) -> None:
        self._limits = limits
        self._refresh_seconds = refresh_seconds
        self._run_blocking = run_blocking
        # Guards the three fields below, which event loops and writer threads use. Never held while the database is read
        # or a subscription is woken.
        self._lock = threading.Lock()
        # Weak, so that a subscription whose call has vanished does not count for ever.
        self._watches: WeakSet[Subscription[ItemT, ConditionsT]] = WeakSet()
        self._notifications = 0
        self._closed = False
        self._newest: object = None
        """The newest position at the last check; only the thread of `check_for_new` uses it."""

    @abstractmethod
    def _read(self, watch: Subscription[ItemT, ConditionsT]) -> None:
        """Put the next items into a subscription, at most READ_BATCH, and move its position behind them."""

    def _newest_position(self) -> object:
        """Return a value that changes with each change. Raises QueryFailed."""
        raise NotImplementedError

    def check_for_new(self) -> None:
        """Wake the subscriptions if other servers changed something since the last check. Raises QueryFailed.

        One thread at a time may call this.
        """
        newest = self._newest_position()
        if newest != self._newest:
            self._newest = newest
            self.notify()

    def notify(self) -> None:
        """Wake the subscriptions because changes were committed."""
        with self._lock:
            self._notifications += 1
            watches = list(self._watches)
        for watch in watches:
            watch.wake()

    def _open(
        self, agent: str, owner: Hashable, conditions: ConditionsT, after: int
    ) -> Subscription[ItemT, ConditionsT]:
        """Open a subscription of an agent to the items after a position; subscriptions are counted by `owner`.

        Raises RateLimited if no more subscriptions are allowed, and Unavailable if the server stops.
        """
        watch = Subscription(agent, owner, conditions, after, self._next, self._end)
        with self._lock:
            self._check_open()
            # With the lock that adds the subscription, so that two calls cannot share the last place.
            self._check_room(watch)
            self._watches.add(watch)
        return watch

    @property
    def open_count(self) -> int:
        with self._lock:
            return len(self._watches)

    def close(self) -> None:
        """End all subscriptions and refuse new ones."""
        with self._lock:
            self._closed = True
            watches = list(self._watches)
        for watch in watches:
            watch.wake()

    async def _next(self, watch: Subscription[ItemT, ConditionsT]) -> ItemT | None:
        """Wait for the next item of a subscription, or return None if it has ended."""
        self._check_reader(watch)
        while self._is_open(watch):
            if watch.ready:
                self._expect_reader(watch)
                return watch.ready.popleft()
            # Before the read: a notification during it changes the number, and `_await_news` then returns at once.
            seen = self._notifications
            await self._run_blocking(self._read, watch)
            if not watch.ready:
                await self._await_news(seen, watch)
        return None

    async def _await_news(self, seen: int, watch: Subscription[ItemT, ConditionsT]) -> None:
        """Return when there are new items, after the refresh time, or when the subscription ends."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        # Set before the lock is taken: a notification after the check below finds it, and one before it has changed
        # `_notifications`. Any thread may call it, and asyncio.Event is not thread-safe.
        watch.wake = lambda: loop.call_soon_threadsafe(woken.set)
        try:
            with self._lock:
                if self._closed or self._notifications != seen or watch not in self._watches:
                    # Notified, ended or closed before there was anything to wake.
                    return
            async with asyncio.timeout(self._refresh_seconds):
                await woken.wait()
        except TimeoutError:
            return
        finally:
            # The loop may be closed by the time of the next notification.
            watch.wake = do_nothing

    def _expect_reader(self, watch: Subscription[ItemT, ConditionsT]) -> None:
        """End the subscription unless its reader comes back for the next item in time."""
        if self._limits.stalled_seconds is not None:
            # The item is written to the reader before the next one is asked for, so that a reader that takes nothing
            # is known by not coming back. The timer frees its place at once; the reader is told when it comes.
            watch.expected = asyncio.get_running_loop().call_later(
                self._limits.stalled_seconds, self._end_stalled, watch
            )

    def _check_reader(self, watch: Subscription[ItemT, ConditionsT]) -> None:
        """Raise Unavailable if the reader came back too late."""
        if watch.expected is not None:
            watch.expected.cancel()
            watch.expected = None
        if watch.stalled:
            seconds = self._limits.stalled_seconds
            raise Unavailable(f"the reader took nothing for {seconds:g} seconds; watch again after what it has seen")

    def _end_stalled(self, watch: Subscription[ItemT, ConditionsT]) -> None:
        watch.stalled = True
        self._end(watch)

    def _is_open(self, watch: Subscription[ItemT, ConditionsT]) -> bool:
        """Return whether a subscription is still open. Raises Unavailable if the server stops."""
        with self._lock:
            self._check_open()
            return watch in self._watches

    def _end(self, watch: Subscription[ItemT, ConditionsT]) -> None:
        with self._lock:
            self._watches.discard(watch)
        watch.wake()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the server is stopping")

    def _check_room(self, watch: Subscription[ItemT, ConditionsT]) -> None:
        limits = self._limits
        if len(self._watches) >= limits.most:
            raise too_many_watches_error("No more watches may be open: the limit", limits.most, limits.most_setting)
        if sum(other.owner == watch.owner for other in self._watches) >= limits.per_owner:
            which = f"{watch.agent} may open no more watches: the limit of an agent"
            raise too_many_watches_error(which, limits.per_owner, limits.per_owner_setting)


def do_nothing() -> None:
    """Do nothing; the `wake` of a subscription whose task is not waiting."""


def too_many_watches_error(which: str, limit: int, setting: str) -> RateLimited:
    """Return the error for a subscription beyond a limit.

    It has no retry time, since the end of a subscription is unknown; so clients raise it instead of retrying.
    """
    return RateLimited(f"{which} is {limit} ({setting}); end one first", metadata={"limit": str(limit)})


class Subscription(AsyncIterator[ItemT], Generic[ItemT, ConditionsT]):
    """An asynchronous iterator over the items of a subscription, in order, which waits for the next one.

    It counts until it is cancelled, fails, or is garbage-collected. Iterating raises QueryFailed if the database fails,
    and Unavailable if the server stops or the reader stalled. One task iterates; any thread may cancel.
    """

    def __init__(
        self,
        agent: str,
        owner: Hashable,
        conditions: ConditionsT,
        after: int,
        following: Callable[[Subscription[ItemT, ConditionsT]], Awaitable[ItemT | None]],
        end: Callable[[Subscription[ItemT, ConditionsT]], None],
    ) -> None:
        self.agent = agent
        self.owner = owner
        self.conditions = conditions
        self.after = after
        """The position up to which items were read."""
        self.ready: deque[ItemT] = deque()
        """Items that were read and not yet returned."""
        self.wake: Callable[[], object] = do_nothing
        """Wakes the task that iterates, if it is waiting; from any thread."""
        self.expected: asyncio.TimerHandle | None = None
        """Ends the subscription if its reader does not come back; only its event loop uses it."""
        self.stalled = False
        self._following = following
        self._end = end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        """Return the next item; raise StopAsyncIteration once the subscription is cancelled."""
        try:
            item = await self._following(self)
        except BaseException:
            self.cancel()
            raise
        if item is None:
            raise StopAsyncIteration
        return item

    def cancel(self) -> None:
        """End the subscription, and the iteration soon after."""
        self._end(self)
