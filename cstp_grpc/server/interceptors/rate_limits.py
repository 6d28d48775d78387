"""Rate limits of calls in moving windows, in memory that several processes may share."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from limits import RateLimitItem, parse

from cstp_grpc.config import ConfigError, RateLimitSettings
from cstp_grpc.contract.methods import is_contract_method
from cstp_grpc.errors import RateLimited
from cstp_grpc.server.interceptors.admission import InboundCall

VALUE_BYTES: Final = 8
LOCK_ATTEMPTS: Final = 40
"""Attempts to lock a window that another process is changing, which takes it microseconds."""
RETRY_PAUSE: Final = 0.00005
"""Seconds between two attempts. A process that is suspended while it holds the lock must not block the others for
long.
"""


class MovingWindows:
    """Admits a limited number of calls in any window of time; a window is a ring of the times of the last calls.

    Memory is used only for windows with calls. With a `descriptor` of `create_shared_memory` all processes that have
    it share the windows; a process that dies leaves them usable. Thread-safe.
    """

    def __init__(self, values: int, descriptor: int | None = None, clock: Callable[[], float] = time.time) -> None:
        """Allocate windows of `values` numbers in total, see `window_value_count`."""
        self._descriptor = descriptor
        self._clock = clock
        self._lock = threading.Lock()
        opened = create_shared_memory() if descriptor is None else descriptor
        try:
            os.ftruncate(opened, max(values, 1) * VALUE_BYTES)
            self._values = memoryview(mmap.mmap(opened, max(values, 1) * VALUE_BYTES)).cast("d")
        finally:
            if descriptor is None:
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
                place = int(values[start])
                oldest = values[start + 1 + place]
                if oldest >= now - seconds:
                    return oldest + seconds
                # In this order a process that dies in between leaves a call uncounted, not a window that looks full.
                values[start] = (place + 1) % most
                values[start + 1 + place] = now
                return None
            finally:
                if locked:
                    assert self._descriptor is not None, "it was locked"
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, start * VALUE_BYTES)

    @staticmethod
    def _try_lock(descriptor: int, offset: int) -> bool:
        """Lock a window against other processes; return False if one does not release it, which may undercount."""
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
        if unknown := [name for name in settings.methods if name not in methods and not is_contract_method(name)]:
            raise ConfigError(f"rate_limits.methods: there is no method {', '.join(unknown)}")
        limits = {name: parse(settings.methods.get(name, settings.per_agent)) for name in sorted(methods)}
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
