"""The events of tenants: listing them, and subscriptions that follow new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from cstp_grpc.common.canonical_json import encode_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.liaison.model import Event, EventFilter
from cstp_grpc.modules.liaison.sessions import MAX_PAGE_SIZE
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import PageRequest, count_within_budget, estimate_message_bytes
from cstp_grpc.platform.storage.subscriptions import READ_BATCH, ChangeFeed, Subscription, WatchLimits
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

EventSubscription = Subscription[Event, EventFilter]
"""A subscription to the events of a tenant; its position is the sequence number of an event."""


class EventFeed(ChangeFeed[Event, EventFilter]):
    """Notify a bounded number of subscriptions of new events, which they read from the store."""

    def __init__(
        self,
        store: SqlRoutingStore,
        reading: Callable[[], AbstractContextManager[UnitOfWork]],
        limits: WatchLimits,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        super().__init__(limits, refresh_seconds, run_blocking)
        self._store = store
        self._reading = reading

    def _newest_position(self) -> int:
        with self._reading() as unit_of_work:
            return self._store.count_events(unit_of_work)

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
        return self._open(agent, (conditions.tenant, agent), conditions, newest if after is None else after)

    def _read(self, watch: EventSubscription) -> None:
        with self._reading() as unit_of_work:
            # Before the events: those committed in between are read below, or have a higher number and come next time.
            newest = self._store.last_sequence(unit_of_work, watch.conditions.tenant)
            if newest > watch.after:
                watch.ready.extend(self._store.events(unit_of_work, watch.conditions, watch.after, READ_BATCH))
        # Events that do not pass the filter are skipped for good, or each read would scan them again.
        watch.after = (watch.ready[-1].sequence or 0) if watch.ready else max(watch.after, newest)

    def _last_sequence(self, tenant: str) -> int:
        with self._reading() as unit_of_work:
            return self._store.last_sequence(unit_of_work, tenant)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order, and whether more follow; `newest` is the sequence number of the tenant's last event, or 0."""

    events: Sequence[Event]
    more: bool
    newest: int


class EventHistory:
    """List the events of tenants."""

    def __init__(self, sessions: SqlSessionStore, store: SqlRoutingStore) -> None:
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
    return estimate_message_bytes((event.session_id, event.user_id, event.agent, encode_canonical_json(event.data)))
