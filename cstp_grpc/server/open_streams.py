"""Streams of answers, which need not have an end: a server that stops ends them itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cstp_grpc.errors import RateLimited, Unavailable


class OpenStreams:
    """The streams that are open; with a bound, the one that has been open longest makes room. For one event loop."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they were opened."""
        self._replaced: set[asyncio.Task[Any]] = set()
        self._interrupted = False

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count the running task among the open streams for the length of a block.

        Raises Unavailable at the stop, and RateLimited if it makes room for another stream.
        """
        task = asyncio.current_task()
        assert task is not None, "streams are answered by tasks"
        if self._most is not None and len(self._tasks) >= self._most:
            self._replace_oldest()
        self._tasks[task] = None
        try:
            yield
        except asyncio.CancelledError:
            # Who leaves cancels the task too, and is told nothing.
            if self._interrupted:
                raise Unavailable("the server is stopping") from None
            if task in self._replaced:
                raise RateLimited(f"Another stream took the place: no more than {self._most} may be open") from None
            raise
        finally:
            self._tasks.pop(task, None)
            self._replaced.discard(task)

    def _replace_oldest(self) -> None:
        oldest = next(iter(self._tasks))
        del self._tasks[oldest]
        self._replaced.add(oldest)
        oldest.cancel()

    def interrupt(self) -> None:
        """End all streams, also those whose callers do not read what is sent."""
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
