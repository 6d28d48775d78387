"""What runs on an event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

from tests.waiting import SECONDS

T = TypeVar("T")


@contextmanager
def entered_in_thread(enter: Callable[[], AbstractAsyncContextManager[T]], name: str) -> Iterator[T]:
    """Be in an asynchronous context, which a thread of that name enters, for the length of a block."""
    found: Future[T] = Future()
    loops = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = loops.get_loop()
    stopped = asyncio.Event()

    async def stay() -> None:
        async with enter() as value:
            found.set_result(value)
            await stopped.wait()

    def run() -> None:
        try:
            with loops:
                loops.run(stay())
        except Exception as error:
            if found.done():
                raise
            found.set_exception(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield found.result(SECONDS)
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stopped.set)
        thread.join(SECONDS)
        assert not thread.is_alive(), f"{name} did not stop"
