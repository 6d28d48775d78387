"""Subscriptions whose readers stall."""

from __future__ import annotations

import asyncio

import pytest

from cstp_grpc.contract.errors import RateLimited, Unavailable
from cstp_grpc.platform.storage.subscriptions import ChangeFeed, Subscription, WatchLimits


class Numbers(ChangeFeed[int, None]):
    """A feed of endless numbers."""

    def __init__(self, stalled_seconds: float | None) -> None:
        super().__init__(WatchLimits(1, 1, "most", "per_owner", stalled_seconds), None, asyncio.to_thread)

    def watch(self, agent: str, after: int = 0) -> Subscription[int, None]:
        return self._open(agent, agent, None, after)

    def _read(self, watch: Subscription[int, None]) -> None:
        watch.ready.append(watch.after)
        watch.after += 1


def test_a_reader_that_takes_nothing_loses_its_place_and_is_told() -> None:
    async def main() -> None:
        numbers = Numbers(0.01)
        watch = numbers.watch("alice")
        assert await anext(watch) == 0
        with pytest.raises(RateLimited):
            numbers.watch("bob")
        async with asyncio.timeout(10):
            while not watch.stalled:
                await asyncio.sleep(0)
        other = numbers.watch("bob")
        with pytest.raises(Unavailable, match="took nothing"):
            await anext(watch)
        assert await anext(other) == 0

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [None, 3600.0])
def test_a_reader_that_comes_back_goes_on(seconds: float | None) -> None:
    async def main() -> None:
        watch = Numbers(seconds).watch("alice", 7)
        assert [await anext(watch) for _ in range(3)] == [7, 8, 9]
        watch.cancel()
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    asyncio.run(main())
