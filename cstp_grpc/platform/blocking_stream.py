"""Streams of calls whose items come from a generator that blocks."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Generator
from typing import TypeVar

from cstp_grpc.platform.storage.background_work import RunBlocking

T = TypeVar("T")


async def stream_blocking(items: Generator[T, None, None], run_blocking: RunBlocking) -> AsyncGenerator[T, None]:
    """Yield the items of a generator, each of which is made on a thread, one after the other.

    The generator is closed at the end, also if the reader leaves while an item is being made.
    """
    # Held while an item is made: a generator in progress cannot be closed.
    making = threading.Lock()

    def make_next() -> T | None:
        with making:
            return next(items, None)

    def close() -> None:
        with making:
            items.close()

    try:
        while (item := await run_blocking(make_next)) is not None:
            yield item
    finally:
        # On a thread of its own: the task may be cancelled, and must not wait for the item in progress.
        threading.Thread(target=close, name="stream-end", daemon=True).start()
