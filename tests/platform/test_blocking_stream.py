"""Streams whose items come from a generator that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import aclosing

import pytest

from cstp_grpc.platform.blocking_stream import stream_blocking
from tests.waiting import SECONDS


def test_the_items_come_in_their_order_and_are_made_on_threads() -> None:
    threads: set[int] = set()

    def count() -> Generator[int, None, None]:
        for number in range(1, 4):
            threads.add(threading.get_ident())
            yield number

    async def read() -> list[int]:
        return [number async for number in stream_blocking(count(), asyncio.to_thread)]

    assert asyncio.run(read()) == [1, 2, 3]
    assert threading.get_ident() not in threads


def test_an_error_of_the_generator_reaches_the_reader() -> None:
    def fail() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no more")

    async def read() -> None:
        async for _ in stream_blocking(fail(), asyncio.to_thread):
            pass

    with pytest.raises(ValueError, match="no more"):
        asyncio.run(read())


def test_a_reader_that_leaves_while_an_item_is_made_closes_the_generator() -> None:
    making, going_on, closed = threading.Event(), threading.Event(), threading.Event()

    def make() -> Generator[int, None, None]:
        try:
            making.set()
            going_on.wait(SECONDS)
            yield 1
        finally:
            closed.set()

    async def leave() -> None:
        async with aclosing(stream_blocking(make(), asyncio.to_thread)) as items:
            reading = asyncio.create_task(anext(items))
            await asyncio.to_thread(making.wait, SECONDS)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert not closed.is_set()
        going_on.set()

    asyncio.run(leave())
    assert closed.wait(SECONDS)
