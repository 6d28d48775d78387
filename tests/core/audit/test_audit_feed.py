"""Watching entries that become visible in another order than that of their ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument, RateLimited
from cstp_grpc.core.audit.audit_feed import AuditFeed
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditFilter
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.storage.subscriptions import READ_BATCH, WatchLimits
from tests.waiting import SECONDS

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
ENTRY = AuditEntry(NOON, AuditEvent.GUARDRAIL_CHECK, "alice", "request", allowed=True)
SETTLING = timedelta(seconds=30)


class LateEntries:
    """Entries that are committed in any order; those of before `settled_at` are all there."""

    def __init__(self, settled: int | None = None) -> None:
        self.visible: set[int] = set()
        self.settled = settled

    def newest_id(self, before: datetime | None = None) -> int:
        newest = max(self.visible, default=0)
        return newest if before is None or self.settled is None else min(newest, self.settled)

    def ids_after(self, entry_id: int, limit: int | None) -> list[int]:
        return sorted(each for each in self.visible if each > entry_id)[:limit]

    def matching(self, conditions: AuditFilter, ids: Sequence[int]) -> list[AuditEntry]:
        return [replace(ENTRY, id=each) for each in ids if conditions.event is None or each % 2]


def feed_of(trail: LateEntries) -> AuditFeed:
    limits = WatchLimits(2, 2, "most", "per_owner")
    tokens = RevisionTokens("abc")
    return AuditFeed(cast(SqlAuditTrail, trail), tokens, lambda: NOON, SETTLING, limits, None, asyncio.to_thread)


async def take(feed: AuditFeed, after: str, count: int, event: AuditEvent | None = None) -> list[tuple[int, str]]:
    """Return the ids and tokens of the next entries of a watch, which is then ended."""
    watch = feed.watch("alice", AuditFilter(event=event), after)
    found = [await asyncio.wait_for(anext(watch), SECONDS) for _ in range(count + 1)]
    watch.cancel()
    assert found[0].entry is None
    return [(each.entry.id or 0, feed.token_of(each)) for each in found[1:] if each.entry is not None]


@given(order=st.permutations(range(1, 7)))
def test_every_entry_is_sent_once_in_whatever_order_it_appears(order: list[int]) -> None:
    async def watch_all() -> list[int]:
        trail = LateEntries(settled=0)
        feed = feed_of(trail)
        watch = feed.watch("alice", AuditFilter(), None)
        await anext(watch)
        found = []
        for number in order:
            trail.visible.add(number)
            feed.notify()
            item = await asyncio.wait_for(anext(watch), SECONDS)
            assert item.entry is not None
            found.append(item.entry.id or 0)
        return found

    assert asyncio.run(watch_all()) == order


def test_a_watch_resumes_at_each_token_without_missing_an_entry() -> None:
    trail = LateEntries(settled=3)
    trail.visible |= {1, 2, 3, 5}
    feed = feed_of(trail)
    found = asyncio.run(take(feed, "0-abc", 4))

    trail.visible |= {4, 6}
    resumed = [asyncio.run(take(feed, token, 6 - min(number, 3))) for number, token in found]

    assert [number for number, _ in found] == [1, 2, 3, 5]
    assert [[number for number, _ in each] for each in resumed] == [[2, 3, 4, 5, 6], [3, 4, 5, 6], [4, 5, 6], [4, 5, 6]]


def test_more_entries_than_are_read_at_a_time_are_all_sent() -> None:
    trail = LateEntries()
    trail.visible |= set(range(1, 3 * READ_BATCH))

    every = asyncio.run(take(feed_of(trail), "0-abc", 3 * READ_BATCH - 1))
    odd = asyncio.run(take(feed_of(trail), "0-abc", 3 * READ_BATCH // 2, AuditEvent.GUARDRAIL_CHECK))

    assert [number for number, _ in every] == list(range(1, 3 * READ_BATCH))
    assert [number for number, _ in odd] == list(range(1, 3 * READ_BATCH, 2))


def test_a_watch_begins_with_what_appears_later() -> None:
    async def watch_from_now() -> int | None:
        trail = LateEntries(settled=0)
        trail.visible |= {1, 3}
        feed = feed_of(trail)
        watch = feed.watch("alice", AuditFilter(), None)
        await anext(watch)
        trail.visible.add(2)
        feed.notify()
        item = await asyncio.wait_for(anext(watch), SECONDS)
        return item.entry.id if item.entry else None

    assert asyncio.run(watch_from_now()) == 2


def test_foreign_tokens_and_too_many_watches_are_refused() -> None:
    async def open_many() -> None:
        feed = feed_of(LateEntries())
        for token in ("9-abc", "0-other", "nonsense"):
            with pytest.raises(InvalidArgument, match="after"):
                feed.watch("alice", AuditFilter(), token)
        kept = [feed.watch("alice", AuditFilter(), None) for _ in range(2)]
        with pytest.raises(RateLimited, match="most"):
            feed.watch("alice", AuditFilter(), None)
        for each in kept:
            each.cancel()

    asyncio.run(open_many())
