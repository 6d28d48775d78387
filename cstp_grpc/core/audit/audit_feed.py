"""Watching the entries of the audit trail as they are added."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.core.audit.model import AuditEntry, AuditFilter
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens, future_token_error
from cstp_grpc.platform.storage.subscriptions import READ_BATCH, ChangeFeed, Subscription, WatchLimits


@dataclass(frozen=True, slots=True)
class WatchedEntry:
    """An entry, None for the beginning of a watch, and the position after which another watch continues."""

    entry: AuditEntry | None
    position: int


@dataclass(slots=True)
class EntryConditions:
    """The filter of a subscription, and the ids after its position that were read already."""

    filters: AuditFilter
    read: set[int] = field(default_factory=set)


EntrySubscription = Subscription[WatchedEntry, EntryConditions]
"""A subscription to entries; its position is an id up to which no more entries can appear."""


class AuditFeed(ChangeFeed[WatchedEntry, EntryConditions]):
    """Notifies a bounded number of subscriptions of new entries, which they read from the trail.

    On PostgreSQL, entries may appear in another order than that of their ids, within `settling`: the time that a
    transaction may take. On SQLite it is 0.
    """

    def __init__(
        self,
        trail: SqlAuditTrail,
        tokens: RevisionTokens,
        clock: Callable[[], datetime],
        settling: timedelta,
        limits: WatchLimits,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        super().__init__(limits, refresh_seconds, run_blocking)
        self._trail = trail
        self._tokens = tokens
        self._clock = clock
        self._settling = settling

    def watch(self, caller: str, filters: AuditFilter, after: str | None) -> EntrySubscription:
        """Subscribe an agent to the entries after the position of a token, or to those from now on.

        Raises InvalidArgument for a token of another trail, RateLimited if no more subscriptions are allowed,
        Unavailable if the server stops, and QueryFailed if the database fails.
        """
        newest = self._trail.newest_id()
        start = self._settled_id() if after is None else self._tokens.read(after, "after", "resumeToken")
        if start > newest:
            raise future_token_error("after")
        conditions = EntryConditions(filters)
        if after is None:
            conditions.read.update(self._trail.ids_after(start, None))
        subscription = self._open(caller, caller, conditions, start)
        subscription.ready.append(WatchedEntry(None, start))
        return subscription

    def token_of(self, item: WatchedEntry) -> str:
        return self._tokens.write(item.position)

    def _settled_id(self) -> int:
        before = self._clock() - self._settling if self._settling else None
        return self._trail.newest_id(before)

    def _read(self, subscription: EntrySubscription) -> None:
        """Read the next entries of a subscription."""
        conditions = subscription.conditions
        # Before the entries: those up to it are among them.
        settled = self._settled_id() if self._settling else 0
        limit = READ_BATCH + len(conditions.read)
        ids = self._trail.ids_after(subscription.after, limit)
        if not self._settling:
            # They appear in the order of their ids.
            settled = max(ids, default=subscription.after)
        unread = [each for each in ids if each not in conditions.read]
        new = unread[:READ_BATCH]
        is_all = len(ids) < limit and len(new) == len(unread)
        position = max(subscription.after, settled if is_all else min(settled, new[-1]))
        for entry in self._trail.matching(conditions.filters, new):
            assert entry.id is not None
            # A watch that resumes before entries that have not settled gets them again, rather than missing others.
            subscription.ready.append(WatchedEntry(entry, min(position, entry.id)))
        subscription.after = position
        conditions.read = {each for each in (*conditions.read, *new) if each > position}
