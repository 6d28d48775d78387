"""Limits on calls: how many in a window of time, how many at once, and how many that wait or stream."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cstp_grpc.config import ConfigError, RateLimitSettings
from cstp_grpc.contract.methods import is_contract_method
from cstp_grpc.errors import RateLimited, Unavailable
from cstp_grpc.server.interceptors.admission import InboundCall

if TYPE_CHECKING:
    from limits import RateLimitItem

VALUE_BYTES: Final = 8
"""The size of a double. A window is `most` + 1 doubles: the index of the oldest time, then a ring of `most` times."""
LOCK_ATTEMPTS: Final = 40
"""Attempts to lock a window that another process is changing, which takes it microseconds. With RETRY_PAUSE, 2 ms."""
RETRY_PAUSE: Final = 0.00005
"""Seconds between two attempts. A process that is suspended while it holds the lock must not block the others for long.
"""


class MovingWindows:
    """Admits a limited number of calls in any window of time; a window is a ring of the times of the last calls.

    Memory is used only for windows with calls. With a `descriptor` of `create_shared_memory` all processes that have it
    share the windows; a process that dies leaves them usable. Thread-safe.
    """

    def __init__(self, values: int, descriptor: int | None = None, clock: Callable[[], float] = time.time) -> None:
        """Allocate windows of `values` numbers in total, see `window_value_count`."""
        self._descriptor = descriptor
        self._clock = clock
        # Guards the values against threads of this process. Lock order: this one first, then the record lock of a
        # window against other processes.
        self._lock = threading.Lock()
        opened = create_shared_memory() if descriptor is None else descriptor
        try:
            # New memory is zero: all times are long past, so every window starts empty. All processes set the same
            # size.
            os.ftruncate(opened, max(values, 1) * VALUE_BYTES)
            self._values = memoryview(mmap.mmap(opened, max(values, 1) * VALUE_BYTES)).cast("d")
        finally:
            if descriptor is None:
                # The mapping keeps the memory. A shared descriptor stays open, because record locks need it.
                os.close(opened)

    def take(self, start: int, most: int, seconds: float) -> float | None:
        """Count a call if fewer than `most` were counted in the last `seconds`.

        `start` is the offset of the window, the same each time. Returns None if the call is admitted, else the time
        from which it would be.
        """
        # The lock of the process comes first: a record lock does not keep its own threads apart.
        with self._lock:
            locked = self._descriptor is not None and self._try_lock(self._descriptor, start * VALUE_BYTES)
            try:
                values = self._values
                now = self._clock()
                position = int(values[start])
                oldest = values[start + 1 + position]
                if oldest >= now - seconds:
                    return oldest + seconds
                # In this order a process that is killed in between leaves a call uncounted. In the other one, the new
                # time would stay the "oldest", and the window would look full for its whole length.
                values[start] = (position + 1) % most
                values[start + 1 + position] = now
                return None
            finally:
                if locked:
                    assert self._descriptor is not None, "it was locked"
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, start * VALUE_BYTES)

    @staticmethod
    def _try_lock(descriptor: int, offset: int) -> bool:
        """Lock a window against other processes; return False if one does not release it, which may undercount."""
        # Not a blocking lock, which would hold up the event loop for as long as a suspended process holds it. The
        # kernel releases the lock of a killed process.
        for _ in range(LOCK_ATTEMPTS):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except OSError:
                time.sleep(RETRY_PAUSE)
            else:
                return True
        return False


def window_value_count(most: int) -> int:
    """Return the count of numbers in a window of at most `most` calls."""
    return most + 1


def create_shared_memory() -> int:
    """Return a descriptor of anonymous memory, which is freed when the last process that has it ends."""
    if create := getattr(os, "memfd_create", None):
        return int(create("cstp-windows"))
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


MIN_WAIT = 0.001
"""Minimum retry delay in seconds, for a limit that is free again by the time it is reported."""


class RateWindow:
    """A limit and the offset of its window; `start` is relative to the agent's windows if each agent has its own."""

    __slots__ = ("limit", "most", "seconds", "start")

    def __init__(self, limit: RateLimitItem, start: int) -> None:
        self.limit = limit
        self.start = start
        self.most: int = limit.amount
        self.seconds: int = limit.get_expiry()


class RateLimiter:
    """Limits calls for each agent and method, and in total, in moving windows.

    `methods` are the served methods, `agents` all callers; `memory` is a descriptor of `create_shared_memory` if
    several processes with the same settings share the limits. Raises ConfigError for a limit on an unknown method.
    """

    def __init__(
        self, settings: RateLimitSettings, methods: Collection[str], agents: Iterable[str], memory: int | None = None
    ) -> None:
        # Not loaded before it is needed: without rate limits nothing of it is.
        from limits import parse

        if unknown := [name for name in settings.methods if name not in methods and not is_contract_method(name)]:
            raise ConfigError(f"rate_limits.methods: there is no method {', '.join(unknown)}")
        limits = {name: parse(settings.methods.get(name, settings.per_agent)) for name in sorted(methods)}
        # The layout of the memory: for each agent, in name order, the windows of all methods in name order; then the
        # overall window. Every process computes the same offsets from the same settings.
        self._methods: dict[str, RateWindow] = {}
        size = 0
        for name, limit in limits.items():
            self._methods[name] = RateWindow(limit, size)
            size += window_value_count(limit.amount)
        self._agents = {agent: number * size for number, agent in enumerate(sorted(set(agents)))}
        size *= len(self._agents)
        self._overall: RateWindow | None = None
        if settings.overall:
            self._overall = RateWindow(parse(settings.overall), size)
            size += window_value_count(self._overall.limit.amount)
        self._windows = MovingWindows(size, memory)

    def __call__(self, call: InboundCall) -> None:
        """Count the call. Raises RateLimited with the seconds to wait."""
        method, agent = call.method.name, call.agent
        assert agent is not None, "authentication comes before"
        window = self._methods[method]
        free_at = self._windows.take(self._agents[agent] + window.start, window.most, window.seconds)
        if free_at is not None:
            raise too_many_calls_in_window(f"calls of {method}", window, free_at)
        overall = self._overall
        if overall is None:
            return
        free_at = self._windows.take(overall.start, overall.most, overall.seconds)
        if free_at is not None:
            raise too_many_calls_in_window("calls of all agents", overall, free_at)


def too_many_calls_in_window(what: str, window: RateWindow, free_at: float) -> RateLimited:
    """Return the error for a call beyond a limit, with the seconds until one is admitted."""
    wait = max(free_at - time.time(), MIN_WAIT)
    return RateLimited(f"Too many {what}: {window.limit} is the limit; try again in {wait:.1f} s", retry_after=wait)


RETRY_SECONDS = 0.5
"""Retry delay for calls beyond the limit. Chosen: a call in progress usually ends within it."""


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
        # `leave` sees the event that was just set up, since nothing is awaited in between.
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
            # Otherwise the dict would keep an entry for each agent that ever called.
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
        """Tasks that were cancelled for a newer stream and have not ended yet."""
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
            # gRPC also cancels the task when the caller leaves, who needs no status; that one is re-raised.
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
