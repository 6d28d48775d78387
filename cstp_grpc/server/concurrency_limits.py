"""Limits on calls in progress, on calls that wait for a message, and on open streams."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cstp_grpc.errors import RateLimited, Unavailable

RETRY_SECONDS = 0.5
"""Retry delay for calls beyond the limit."""


class CallsInProgress:
    """Limits the calls in progress, of each agent and of all. For one event loop."""

    def __init__(self, per_agent: int, overall: int) -> None:
        self._per_agent = per_agent
        self._overall = overall
        self._counts: dict[str, int] = {}
        self._total = 0
        self._idle: asyncio.Event | None = None

    async def wait_until_idle(self) -> None:
        """Wait until no call is in progress."""
        self._idle = asyncio.Event()
        if self._total:
            await self._idle.wait()

    # Two methods instead of a context manager, which would cost each call five frames more.
    def enter(self, agent: str) -> None:
        """Count a call as in progress until `leave`. Raises RateLimited beyond a limit."""
        count = self._counts.get(agent, 0)
        if count >= self._per_agent:
            raise too_many_calls_error("of this agent", self._per_agent, "max_calls_per_agent")
        if self._total >= self._overall:
            raise too_many_calls_error("of all agents", self._overall, "max_calls")
        self._counts[agent] = count + 1
        self._total += 1

    def leave(self, agent: str) -> None:
        """End a call that `enter` has counted."""
        self._total -= 1
        count = self._counts[agent] - 1
        if count:
            self._counts[agent] = count
        else:
            # Otherwise there would be a count for each agent that ever called.
            del self._counts[agent]
        if self._idle and not self._total:
            self._idle.set()


def too_many_calls_error(whose: str, limit: int, setting: str) -> RateLimited:
    """Return the error for a call beyond a limit."""
    return RateLimited(
        f"Too many calls {whose} are in progress: the limit is {limit} (grpc.{setting}); wait for answers",
        retry_after=RETRY_SECONDS,
    )


class WaitingCalls:
    """Limits calls without authentication that wait for a message: the oldest is evicted for a new one.

    If the new one were refused, idle connections of strangers could block health checks. For one event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limits: OrderedDict[asyncio.Timeout, None] = OrderedDict()

    @contextmanager
    def add(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Count a waiting call within the block; its `limit` is brought forward if it is evicted."""
        if len(self._limits) >= self._most:
            oldest, _ = self._limits.popitem(last=False)
            oldest.reschedule(asyncio.get_running_loop().time())
        self._limits[limit] = None
        try:
            yield
        finally:
            self._limits.pop(limit, None)


class OpenStreams:
    """Tracks open response streams; beyond `most`, the oldest is closed. For one event loop."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they were opened."""
        self._replaced: set[asyncio.Task[Any]] = set()
        self._interrupted = False

    @contextmanager
    def track(self) -> Iterator[None]:
        """Track the running task as an open stream within the block.

        Raises Unavailable when the server stops, and RateLimited if evicted for another stream.
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

    def cancel_all(self) -> None:
        """Cancel all streams, including those whose callers do not read."""
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
