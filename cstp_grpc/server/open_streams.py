"""Streams of answers, which need not have an end: a server that stops ends them itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cstp_grpc.errors import Unavailable


class OpenStreams:
    """The streams that are open. For one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interrupted = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count the running task among the open streams for the length of a block. Raises Unavailable at the stop."""
        task = asyncio.current_task()
        assert task is not None, "streams are answered by tasks"
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # Who leaves cancels the task too, and is told nothing.
            if self._interrupted:
                raise Unavailable("the server is stopping") from None
            raise
        finally:
            self._tasks.discard(task)

    def interrupt(self) -> None:
        """End all streams, also those whose callers do not read what is sent."""
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
