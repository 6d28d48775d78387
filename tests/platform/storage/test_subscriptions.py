"""Subscriptions whose readers stall."""

from __future__ import annotations

import asyncio

import pytest

from cstp_grpc.contract.errors import RateLimited, Unavailable
from cstp_grpc.platform.storage.subscriptions import Subscription, SubscriptionHub, WatchLimits


class Numbers:
    """A store of endless numbers."""

    def read(self, watch: Subscription[int, None]) -> None:
        watch.ready.append(watch.after)
        watch.after += 1


def hub(stalled_seconds: float | None) -> SubscriptionHub[int, None]:
    limits = WatchLimits(1, 1, "most", "per_owner", stalled_seconds)
    return SubscriptionHub(Numbers().read, limits, None, asyncio.to_thread)


def test_a_reader_that_takes_nothing_loses_its_place_and_is_told() -> None:
    async def main() -> None:
        numbers = hub(0.01)
        watch = numbers.open("alice", "alice", None, 0)
        assert await anext(watch) == 0
        with pytest.raises(RateLimited):
            numbers.open("bob", "bob", None, 0)
        async with asyncio.timeout(10):
            while not watch.stalled:
                await asyncio.sleep(0)
        other = numbers.open("bob", "bob", None, 0)
        with pytest.raises(Unavailable, match="took nothing"):
            await anext(watch)
        assert await anext(other) == 0

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [None, 3600.0])
def test_a_reader_that_comes_back_goes_on(seconds: float | None) -> None:
    async def main() -> None:
        watch = hub(seconds).open("alice", "alice", None, 7)
        assert [await anext(watch) for _ in range(3)] == [7, 8, 9]
        watch.cancel()
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    asyncio.run(main())
