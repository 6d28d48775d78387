"""Watching intents that become visible in another order than that of their numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.intents.intent_feed import IntentFeed, IntentSubscription
from cstp_grpc.core.intents.model import AnnouncedIntent, Intent, IntentFilter
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.storage.subscriptions import WatchLimits
from tests.waiting import SECONDS

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
INTENT = Intent(agent="alice", correlation_id="c-1", content_hash="hash", received_at=NOON)


class LateIntents:
    """Intents of alice that are committed in any order, however long that takes."""

    def __init__(self) -> None:
        self.visible: dict[int, Intent] = {}
        self.begun: set[int] = set()

    def begin(self, number: int) -> AnnouncedIntent:
        """Give out a number; the intent is not visible yet."""
        self.begun.add(number)
        return AnnouncedIntent(number, replace(INTENT, correlation_id=f"c-{number}"))

    def commit(self, item: AnnouncedIntent) -> None:
        self.begun.remove(item.number)
        self.visible[item.number] = item.intent

    def announced(self, caller: str, conditions: IntentFilter, after: int, limit: int | None) -> list[AnnouncedIntent]:
        assert (caller, conditions) == ("alice", IntentFilter())
        return [AnnouncedIntent(*item) for item in sorted(self.visible.items()) if item[0] > after][:limit]

    def newest_number(self) -> int:
        return max(self.visible, default=0)

    def settled_number(self) -> int:
        return min([self.newest_number(), *(number - 1 for number in self.begun)])


def feed_of(store: LateIntents) -> IntentFeed:
    limits = WatchLimits(9, 9, "most", "per_owner")
    tokens = RevisionTokens("abc")
    return IntentFeed(cast(SqlIntentStore, store), SHARE_WITH_ALL, tokens, limits, None, asyncio.to_thread)


async def take_ready(watch: IntentSubscription, count: int) -> tuple[list[str], int]:
    """Return the ids of the next intents, and the last position."""
    found, position = [], 0
    for _ in range(count):
        item = await anext(watch)
        position = item.position
        if item.intent is not None:
            found.append(item.intent.correlation_id)
    return found, position


@given(order=st.permutations(range(1, 7)))
def test_every_intent_is_told_once_in_whatever_order_it_appears(order: list[int]) -> None:
    async def main() -> None:
        store = LateIntents()
        feed = feed_of(store)
        watch = feed.watch("alice", "alice", IntentFilter(), None, None)
        assert await take_ready(watch, 1) == ([], 0)
        begun = {number: store.begin(number) for number in sorted(order)}
        told: list[str] = []
        last = 0
        for number in order:
            store.commit(begun[number])
            found, position = await take_ready(watch, 1)
            told += found
            assert position >= last
            last = position
            # Another watch goes on there and misses nothing.
            again = feed.watch("alice", "alice", IntentFilter(), None, f"{position}-abc")
            missing = [key for key in store.visible if key > position]
            assert await take_ready(again, 1 + len(missing)) == ([f"c-{key}" for key in sorted(missing)], position)
            again.cancel()
        assert sorted(told) == sorted(item.intent.correlation_id for item in begun.values())
        assert last == 6

    asyncio.run(main())


def test_a_watch_from_now_on_tells_nothing_of_before() -> None:
    async def main() -> None:
        store = LateIntents()
        slow = store.begin(1)
        store.commit(store.begin(2))
        watch = feed_of(store).watch("alice", "alice", IntentFilter(), None, None)
        store.commit(store.begin(3))
        assert await take_ready(watch, 2) == (["c-3"], 0)
        store.commit(slow)
        assert await take_ready(watch, 1) == (["c-1"], 3)

    asyncio.run(main())


@given(st.integers(0, 5))
def test_a_watch_that_ends_between_intents_is_taken_up_after_the_last_one_that_it_told(told: int) -> None:
    async def main() -> None:
        store = LateIntents()
        feed = feed_of(store)
        for number in range(1, 7):
            store.commit(store.begin(number))
        _, position = await take_ready(feed.watch("alice", "alice", IntentFilter(), None, "0-abc"), 1 + told)
        again = feed.watch("alice", "alice", IntentFilter(), None, f"{position}-abc")
        found, _ = await take_ready(again, 1 + 6 - told)
        assert found == [f"c-{number}" for number in range(told + 1, 7)]

    asyncio.run(asyncio.wait_for(main(), SECONDS))
