"""The events of tenants: listing them, and subscriptions that follow new ones."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self
from weakref import WeakSet

from cstp_grpc.errors import InvalidArgument, RateLimited, Unavailable
from cstp_grpc.liaison.canonical_json import encode_canonical_json
from cstp_grpc.liaison.model import Event, EventFilter
from cstp_grpc.liaison.sessions import MAX_PAGE_SIZE
from cstp_grpc.liaison.store import RoutingStore, SessionStore
from cstp_grpc.storage.background_work import RunBlocking
from cstp_grpc.storage.pagination import PageRequest, count_within_budget, estimate_message_bytes
from cstp_grpc.storage.unit_of_work import UnitOfWork

READ_BATCH = 100
"""Events that a subscription reads at a time. Chosen: it holds so many in memory, whatever its client reads."""


class EventFeed:
    """Notify a bounded number of subscriptions of new events, which they read from the store.

    `max_watchers` bounds all subscriptions, `per_agent` those of one agent. Subscriptions also poll every
    `refresh_seconds`. They wait on event loops and read by `run_blocking`; functions that are not coroutines may be
    called from any thread.
    """

    def __init__(
        self,
        store: RoutingStore,
        reading: Callable[[], AbstractContextManager[UnitOfWork]],
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
        # Guards the four fields below, which event loops and writer threads use. Never held while the database is read
        # or a subscription is woken.
        self._lock = threading.Lock()
        # Weak, so that a subscription whose call has vanished does not count for ever.
        self._watches: WeakSet[EventSubscription] = WeakSet()
        self._notifications = 0
        self._counted = 0
        """The number of events at the last check; only the thread of `check_for_new` uses it."""
        self._closed = False

    def notify(self) -> None:
        """Wake the subscriptions because new events were committed."""
        with self._lock:
            self._notifications += 1
            watches = list(self._watches)
        for watch in watches:
            watch.wake()

    def check_for_new(self) -> None:
        """Wake the subscriptions if other servers wrote events since the last check. Raises QueryFailed.

        One thread at a time may call this.
        """
        with self._reading() as unit_of_work:
            count = self._store.count_events(unit_of_work)
        if count != self._counted:
            self._counted = count
            self.notify()

    def watch(self, conditions: EventFilter, after: int | None, agent: str) -> EventSubscription:
        """Subscribe an agent to the events after a sequence number, or to those from now on.

        Raises InvalidArgument for a sequence that the tenant has not reached, RateLimited if no more subscriptions are
        allowed, Unavailable if the server stops, and QueryFailed if the database fails.
        """
        newest = self._last_sequence(conditions.tenant)
        if after is not None and after > newest:
            # The caller's number is from another database, for instance from before a restore. It would wait until this
            # one reaches the number, and miss all events until then.
            raise InvalidArgument.field("after", f"must be at most {newest}, the sequence of the last event")
        start = newest if after is None else after
        watch = EventSubscription(agent, conditions, start, self._next, self._end)
        with self._lock:
            self._check_open()
            # With the lock that adds the subscription, so that two calls cannot share the last place.
            self._check_room(watch)
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """End all subscriptions and refuse new ones."""
        with self._lock:
            self._closed = True
            watches = list(self._watches)
        for watch in watches:
            watch.wake()

    async def _next(self, watch: EventSubscription) -> Event | None:
        """Wait for the next event of a subscription, or return None if it has ended."""
        while self._is_open(watch):
            if watch.ready:
                return watch.ready.popleft()
            # Before the read: a notification during it changes the number, and `_await_news` then returns at once.
            seen = self._notifications
            await self._run_blocking(self._read, watch)
            if not watch.ready:
                await self._await_news(seen, watch)
        return None

    def _read(self, watch: EventSubscription) -> None:
        """Read the next batch of events of a subscription."""
        with self._reading() as unit_of_work:
            # Before the events: those committed in between are read below, or have a higher number and come next time.
            newest = self._store.last_sequence(unit_of_work, watch.conditions.tenant)
            if newest > watch.after:
                watch.ready.extend(self._store.events(unit_of_work, watch.conditions, watch.after, READ_BATCH))
        # Events that do not pass the filter are skipped for good, or each read would scan them again.
        watch.after = (watch.ready[-1].sequence or 0) if watch.ready else max(watch.after, newest)

    async def _await_news(self, seen: int, watch: EventSubscription) -> None:
        """Return when there are new events, after the refresh time, or when the subscription ends."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        # Set before the lock is taken: a notification after the check below finds it, and one before it has changed
        # `_notifications`. Any thread may call it, and asyncio.Event is not thread-safe.
        watch.wake = lambda: loop.call_soon_threadsafe(woken.set)
        with self._lock:
            if self._closed or self._notifications != seen or watch not in self._watches:
                # Notified, ended or closed before there was anything to wake.
                return
        try:
            async with asyncio.timeout(self._refresh_seconds):
                await woken.wait()
        except TimeoutError:
            return
        finally:
            watch.wake = do_nothing

    def _is_open(self, watch: EventSubscription) -> bool:
        """Return whether a subscription is still open. Raises Unavailable if the server stops."""
        with self._lock:
            self._check_open()
            return watch in self._watches

    def _end(self, watch: EventSubscription) -> None:
        with self._lock:
            self._watches.discard(watch)
        watch.wake()

    def _last_sequence(self, tenant: str) -> int:
        with self._reading() as unit_of_work:
            return self._store.last_sequence(unit_of_work, tenant)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the server is stopping")

    def _check_room(self, watch: EventSubscription) -> None:
        if len(self._watches) >= self._max_watchers:
            raise too_many_watches_error("No more watches may be open: the limit", self._max_watchers, "max_watchers")
        if sum(other.owner == watch.owner for other in self._watches) >= self._per_agent:
            which = f"{watch.agent} may open no more watches: the limit of an agent"
            raise too_many_watches_error(which, self._per_agent, "watchers_per_agent")


def do_nothing() -> None:
    """Do nothing; the `wake` of a subscription whose task is not waiting."""


def too_many_watches_error(which: str, limit: int, setting: str) -> RateLimited:
    """Return the error for a subscription beyond a limit.

    It names no retry time, since nobody knows when a subscription ends; so clients raise it instead of retrying.
    """
    return RateLimited(f"{which} is {limit} (liaison.{setting}); end one first", metadata={"limit": str(limit)})


class EventSubscription(AsyncIterator[Event]):
    """An asynchronous iterator over the events of a subscription, in order, which waits for the next one.

    It counts until it is cancelled, fails, or is garbage-collected. Iterating raises QueryFailed if the database fails,
    and Unavailable if the server stops. One task iterates; any thread may cancel.
    """

    def __init__(
        self,
        agent: str,
        conditions: EventFilter,
        after: int,
        following: Callable[[EventSubscription], Awaitable[Event | None]],
        end: Callable[[EventSubscription], None],
    ) -> None:
        self.agent = agent
        self.conditions = conditions
        self.after = after
        """The sequence up to which events were read."""
        self.ready: deque[Event] = deque()
        """Events that were read and not yet returned."""
        self.wake: Callable[[], object] = do_nothing
        """Wakes the task that iterates, if it is waiting; from any thread."""
        self._following = following
        self._end = end

    @property
    def owner(self) -> tuple[str, str]:
        """The tenant and the agent of the subscription."""
        return self.conditions.tenant, self.agent

    def __aiter__(self) -> Self:
        """Return the subscription itself."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event; raise StopAsyncIteration once the subscription is cancelled."""
        try:
            event = await self._following(self)
        except BaseException:
            self.cancel()
            raise
        if event is None:
            raise StopAsyncIteration
        return event

    def cancel(self) -> None:
        """End the subscription, and the iteration soon after."""
        self._end(self)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order, and whether more follow; `newest` is the sequence number of the tenant's last event, or 0."""

    events: Sequence[Event]
    more: bool
    newest: int


class EventHistory:
    """List the events of tenants."""

    def __init__(self, sessions: SessionStore, store: RoutingStore) -> None:
        self._sessions = sessions
        self._store = store

    def events(self, conditions: EventFilter, after: int, size: int) -> EventPage:
        """Return the events after a sequence number: at most `size`, 50 if that is 0, and never more than 100.

        Raises QueryFailed.
        """
        limit = min(PageRequest(size).limit, MAX_PAGE_SIZE)
        with self._sessions.read_snapshot() as unit_of_work:
            newest = self._store.last_sequence(unit_of_work, conditions.tenant)
            found = self._store.events(unit_of_work, conditions, after, limit + 1)
        kept = found[: count_within_budget(found[:limit], event_size)]
        return EventPage(kept, len(found) > len(kept), newest)


def event_size(event: Event) -> int:
    """Estimate how many bytes an event takes in a message."""
    return estimate_message_bytes((event.session_id, event.user_id, event.agent, encode_canonical_json(event.data)))
