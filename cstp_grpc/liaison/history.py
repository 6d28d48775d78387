"""Listing what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cstp_grpc.liaison.canonical import canonical
from cstp_grpc.liaison.model import Event, EventFilter
from cstp_grpc.liaison.sessions import MAX_PAGE
from cstp_grpc.liaison.store import RoutingStore, SessionStore
from cstp_grpc.storage.paging import PageRequest, estimated_size, fitting


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in their order, and whether there are more; `newest` is the sequence of the tenant's last event, or 0."""

    events: Sequence[Event]
    more: bool
    newest: int


class History:
    """Lists the events of tenants."""

    def __init__(self, sessions: SessionStore, store: RoutingStore) -> None:
        self._sessions = sessions
        self._store = store

    def events(self, conditions: EventFilter, after: int, size: int) -> EventPage:
        """Return the events after a sequence, at most `size`, 50 where that is 0, and never more than 100.

        Raises QueryFailed.
        """
        limit = min(PageRequest(size).limit, MAX_PAGE)
        with self._sessions.reading() as connection:
            newest = self._store.last_sequence(connection, conditions.tenant)
            found = self._store.events(connection, conditions, after, limit + 1)
        kept = found[: fitting(found[:limit], size_of)]
        return EventPage(kept, len(found) > len(kept), newest)


def size_of(event: Event) -> int:
    """Return about how many bytes an event takes in a message."""
    return estimated_size((event.session_id, event.user_id, event.agent, canonical(event.data)))
