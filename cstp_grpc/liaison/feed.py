"""Events as they happen, for those who watch."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Self
from weakref import WeakSet

from sqlalchemy import Connection

from cstp_grpc.errors import InvalidArgument, RateLimited, Unavailable
from cstp_grpc.liaison.model import Event, EventFilter
from cstp_grpc.liaison.store import RoutingStore
from cstp_grpc.storage.blocking import RunBlocking

BATCH = 100
"""Events that a watch reads at once."""


class Feed:
    """Lets a bounded number of callers watch events, which they read from the store when they hear of new ones.

    `max_watchers` counts all watches, `per_agent` those of one agent. Watches also look by themselves, every
    `refresh_seconds`. They wait on event loops and read by `run_blocking`; what is not a coroutine may be called by any
    thread.
    """

    def __init__(
        self,
        store: RoutingStore,
        reading: Callable[[], AbstractContextManager[Connection]],
        max_watchers: int,
        per_agent: int,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        self._store = store
        self._reading = reading
        self._max_watchers = max_watchers
        self._per_agent = per_agent
        self._refresh_seconds = refresh_seconds
        self._run_blocking = run_blocking
        self._lock = threading.Lock()
        self._watches: WeakSet[Watch] = WeakSet()
        self._news = 0
        self._counted = 0
        """How many events there were at the last look."""
        self._closed = False

    def notify(self) -> None:
        """Tell the watches that there are new events, which must be committed."""
        with self._lock:
            self._news += 1
            watches = list(self._watches)
        for watch in watches:
            watch.wake()

    def look(self) -> None:
        """Tell the watches if other servers wrote events since the last look. Raises QueryFailed.

        One thread at a time may call this.
        """
        with self._reading() as connection:
            count = self._store.count_events(connection)
        if count != self._counted:
            self._counted = count
            self.notify()

    def watch(self, conditions: EventFilter, after: int | None, agent: str) -> Watch:
        """Return a watch, for an agent, of the events after a sequence, or of those that happen from now on.

        Raises InvalidArgument for a sequence that the tenant has not reached, RateLimited if no more may watch,
        Unavailable if the server stops, and QueryFailed if the database does not answer.
        """
        newest = self._last_sequence(conditions.tenant)
        if after is not None and after > newest:
            # Such a caller knows another database, perhaps that of before a restore; it would miss what happens now.
            raise InvalidArgument.field("after", f"must be at most {newest}, the sequence of the last event")
        start = newest if after is None else after
        watch = Watch(agent, conditions, start, self._next, self._end)
        with self._lock:
            self._check_open()
            self._check_room(watch)
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """End all watches, and let nobody watch any more."""
        with self._lock:
            self._closed = True
            watches = list(self._watches)
        for watch in watches:
            watch.wake()

    async def _next(self, watch: Watch) -> Event | None:
        """Return the next event of a watch, once there is one; None where the watch has ended."""
        while self._goes_on(watch):
            if watch.ready:
                return watch.ready.popleft()
            heard = self._news
            await self._run_blocking(self._read, watch)
            if not watch.ready:
                await self._await_news(heard, watch)
        return None

    def _read(self, watch: Watch) -> None:
        """Give a watch the events that follow its own, as many as are read at once."""
        with self._reading() as connection:
            # First, so that nothing is passed over that is committed in between.
            newest = self._store.last_sequence(connection, watch.conditions.tenant)
            if newest > watch.after:
                watch.ready.extend(self._store.events(connection, watch.conditions, watch.after, BATCH))
        # What concerns nobody here need not be read again.
        watch.after = (watch.ready[-1].sequence or 0) if watch.ready else max(watch.after, newest)

    async def _await_news(self, heard: int, watch: Watch) -> None:
        """Return when there is more news than was heard of, when it is time to look, or when the watch ends."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        watch.wake = lambda: loop.call_soon_threadsafe(woken.set)
        with self._lock:
            if self._closed or self._news != heard or watch not in self._watches:
                # It happened before anybody could be woken.
                return
        try:
            async with asyncio.timeout(self._refresh_seconds):
                await woken.wait()
        except TimeoutError:
            return
        finally:
            watch.wake = ignore

    def _goes_on(self, watch: Watch) -> bool:
        """Whether a watch has its place. Raises Unavailable where the server stops."""
        with self._lock:
            self._check_open()
            return watch in self._watches

    def _end(self, watch: Watch) -> None:
        with self._lock:
            self._watches.discard(watch)
        watch.wake()

    def _last_sequence(self, tenant: str) -> int:
        with self._reading() as connection:
            return self._store.last_sequence(connection, tenant)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the server is stopping")

    def _check_room(self, watch: Watch) -> None:
        if len(self._watches) >= self._max_watchers:
            raise too_many_watches("No more watches may be open: the limit", self._max_watchers, "max_watchers")
        if sum(other.owner == watch.owner for other in self._watches) >= self._per_agent:
            which = f"{watch.agent} may open no more watches: the limit of an agent"
            raise too_many_watches(which, self._per_agent, "watchers_per_agent")


def ignore() -> None:
    """Do nothing: nobody waits."""


def too_many_watches(which: str, limit: int, setting: str) -> RateLimited:
    """Return the error for a watch beyond a limit.

    It names no time to wait, since nobody knows when a watch ends; so clients raise it instead of trying again.
    """
    return RateLimited(f"{which} is {limit} (liaison.{setting}); end one first", metadata={"limit": str(limit)})


class Watch(AsyncIterator[Event]):
    """The events of an agent's watch, in their order, as they happen; waits for the next one.

    It has its place until it is cancelled, fails, or is garbage. Iterating raises QueryFailed where the database does
    not answer, and Unavailable where the server stops. One task iterates; any thread may cancel.
    """

    def __init__(
        self,
        agent: str,
        conditions: EventFilter,
        after: int,
        following: Callable[[Watch], Awaitable[Event | None]],
        end: Callable[[Watch], None],
    ) -> None:
        self.agent = agent
        self.conditions = conditions
        self.after = after
        """The sequence up to which events were read."""
        self.ready: deque[Event] = deque()
        """Events that were read and not yet returned."""
        self.wake: Callable[[], object] = ignore
        """Lets whoever iterates look again; does nothing while nobody waits."""
        self._following = following
        self._end = end

    @property
    def owner(self) -> tuple[str, str]:
        """Whose it is: tenant and agent."""
        return self.conditions.tenant, self.agent

    def __aiter__(self) -> Self:
        """Return the watch itself."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event; there is none once the watch is cancelled."""
        try:
            event = await self._following(self)
        except BaseException:
            self.cancel()
            raise
        if event is None:
            raise StopAsyncIteration
        return event

    def cancel(self) -> None:
        """Give the place back, and end the iteration soon."""
        self._end(self)
