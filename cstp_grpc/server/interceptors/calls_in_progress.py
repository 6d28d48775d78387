"""How many calls may be in progress at once, so that those who wait cost others no memory."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from cstp_grpc.errors import RateLimited

RETRY_SECONDS = 0.5
"""After how long to call again when too many calls are in progress."""


class CallsInProgress:
    """Counts calls, of each agent and of all. For one event loop."""

    def __init__(self, per_agent: int, overall: int) -> None:
        self._per_agent = per_agent
        self._overall = overall
        self._counts: Counter[str] = Counter()
        self._total = 0
        self._idle: asyncio.Event | None = None

    async def wait_until_idle(self) -> None:
        """Return when no call is in progress."""
        self._idle = asyncio.Event()
        if self._total:
            await self._idle.wait()

    @contextmanager
    def count(self, agent: str) -> Iterator[None]:
        """Count a call for the length of a block. Raises RateLimited if there are too many."""
        if self._counts[agent] >= self._per_agent:
            raise too_many("of this agent", self._per_agent, "max_calls_per_agent")
        if self._total >= self._overall:
            raise too_many("of all agents", self._overall, "max_calls")
        self._counts[agent] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._counts[agent] -= 1
            if not self._counts[agent]:
                del self._counts[agent]
            if self._idle and not self._total:
                self._idle.set()


def too_many(whose: str, limit: int, setting: str) -> RateLimited:
    """Return the error for a call beyond a limit."""
    return RateLimited(
        f"Too many calls {whose} are in progress: the limit is {limit} (grpc.{setting}); wait for answers",
        retry_after=RETRY_SECONDS,
    )


class WaitingCalls:
    """Calls that need no token and wait for a message: who has waited longest makes room for a new one.

    Refusing the new one would let strangers who send nothing keep health from those who ask for it. For one event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limits: OrderedDict[asyncio.Timeout, None] = OrderedDict()

    @contextmanager
    def add(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Count a call that waits for the length of a block; `limit` ends its waiting."""
        if len(self._limits) >= self._most:
            oldest, _ = self._limits.popitem(last=False)
            oldest.reschedule(asyncio.get_running_loop().time())
        self._limits[limit] = None
        try:
            yield
        finally:
            self._limits.pop(limit, None)
