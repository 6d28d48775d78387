"""Watching intents that become visible in another order than that of their numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.decisions.revision_tokens import RevisionTokens
from cstp_grpc.intents.intent_feed import SETTLING_TIME, IntentFeed, IntentSubscription
from cstp_grpc.intents.model import AnnouncedIntent, Intent, IntentFilter, IntentStore
from cstp_grpc.storage.subscriptions import WatchLimits

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
INTENT = Intent(agent="alice", correlation_id="c-1", content_hash="hash", received_at=NOON)


class LateIntents:
    """Intents of alice that are committed in any order, within the time in which they settle."""

    def __init__(self) -> None:
        self.now = NOON
        self.visible: dict[int, Intent] = {}

    def begin(self, number: int) -> AnnouncedIntent:
        """Give out a number; the intent is not visible yet."""
        return AnnouncedIntent(number, replace(INTENT, correlation_id=f"c-{number}", received_at=self.now))

    def commit(self, item: AnnouncedIntent) -> None:
        self.visible[item.number] = item.intent

    def announced(self, caller: str, conditions: IntentFilter, after: int, limit: int | None) -> list[AnnouncedIntent]:
        assert (caller, conditions) == ("alice", IntentFilter())
        return [AnnouncedIntent(*item) for item in sorted(self.visible.items()) if item[0] > after][:limit]

    def newest_number(self) -> int:
        return max(self.visible, default=0)

    def settled_number(self, before: datetime) -> int:
        return max((number for number, intent in self.visible.items() if intent.received_at < before), default=0)


def feed_of(store: LateIntents) -> IntentFeed:
    limits = WatchLimits(9, 9, "most", "per_owner")
    tokens = RevisionTokens("abc")
    return IntentFeed(
        cast(IntentStore, store), SHARE_WITH_ALL, tokens, lambda: store.now, limits, None, asyncio.to_thread
    )


async def take_ready(watch: IntentSubscription, count: int) -> tuple[list[str], int]:
    """Return the ids of the next intents, and the last position."""
    found, position = [], 0
    for _ in range(count):
        item = await anext(watch)
        position = item.position
        if item.intent is not None:
            found.append(item.intent.correlation_id)
    return found, position


@given(order=st.permutations(range(1, 7)), steps=st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_every_intent_is_told_once_in_whatever_order_it_appears(order: list[int], steps: list[int]) -> None:
    async def main() -> None:
        store = LateIntents()
        feed = feed_of(store)
        watch = feed.watch("alice", "alice", IntentFilter(), None, None)
        assert await take_ready(watch, 1) == ([], 0)
        begun = {number: store.begin(number) for number in sorted(order)}
        told: list[str] = []
        last = 0
        for number, seconds in zip(order, steps, strict=True):
            store.commit(begun[number])
            # All are visible before the first of them settles.
            store.now = min(store.now + timedelta(seconds=seconds), NOON + SETTLING_TIME)
            found, position = await take_ready(watch, 1)
            told += found
            assert position >= last
            last = position
        assert sorted(told) == sorted(item.intent.correlation_id for item in begun.values())
        store.now = NOON + SETTLING_TIME + timedelta(seconds=1)
        store.commit(store.begin(7))
        assert await take_ready(watch, 1) == (["c-7"], 6)
        again = feed.watch("alice", "alice", IntentFilter(), None, "6-abc")
        assert await take_ready(again, 2) == (["c-7"], 6)

    asyncio.run(main())


def test_a_watch_from_now_on_tells_nothing_of_before() -> None:
    async def main() -> None:
        store = LateIntents()
        store.commit(store.begin(1))
        watch = feed_of(store).watch("alice", "alice", IntentFilter(), None, None)
        store.commit(store.begin(2))
        assert await take_ready(watch, 2) == (["c-2"], 0)

    asyncio.run(main())


def test_a_watch_goes_on_though_the_latest_intent_received_has_a_smaller_number() -> None:
    async def main() -> None:
        store = LateIntents()
        slow = AnnouncedIntent(2, replace(INTENT, correlation_id="c-2", received_at=NOON))
        store.now = NOON + timedelta(seconds=5)
        store.commit(store.begin(1))
        store.commit(slow)
        again = feed_of(store).watch("alice", "alice", IntentFilter(), None, "2-abc")
        assert await take_ready(again, 1) == ([], 2)

    asyncio.run(main())
