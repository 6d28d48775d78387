"""Rate limits of calls in moving windows, which processes of one machine share in memory."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final

from cstp_grpc.contract.errors import RateLimited
from cstp_grpc.contract.methods import is_contract_method
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY
from cstp_grpc.platform.config import ConfigError, RateLimitSettings
from cstp_grpc.server.interceptors.admission import InboundCall, RateLimitState

if TYPE_CHECKING:
    from limits import RateLimitItem

VALUE_BYTES: Final = 8
"""The size of a double. A window is `most` + 1 doubles: the index of the oldest time, then a ring of `most` times."""
LOCK_ATTEMPTS: Final = 40
"""Attempts to lock a window that another process is changing, which takes it microseconds. With RETRY_PAUSE, 2 ms."""
RETRY_PAUSE: Final = 0.00005
"""Seconds between two attempts. A process that is suspended while it holds the lock must not block the others for long.
"""


UNCOUNTED_SECONDS: Final = 1e9
"""Age of the times in new memory, which are zero, when the machine starts: longer than any window, and small enough
that doubles distinguish microseconds."""


def machine_seconds() -> float:
    """Return a time that all processes of this machine share, and that is unaffected by changes of the clock."""
    return UNCOUNTED_SECONDS + time.monotonic()


class MovingWindows:
    """Admits a limited number of calls in any window of time; a window is a ring of the times of the last calls.

    Memory is used only for windows with calls. With a `descriptor` of `create_shared_memory` all processes that have it
    share the windows; a process that dies leaves them usable. Thread-safe.
    """

    def __init__(
        self, values: int, descriptor: int | None = None, clock: Callable[[], float] = machine_seconds
    ) -> None:
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

    def take(self, start: int, most: int, seconds: float, count: int = 1) -> float | None:
        """Count `count` calls, at most `most`, if no more than `most` are counted in the last `seconds` with them.

        `start` is the offset of the window, the same each time. Returns None if the calls are admitted, else the
        seconds until they would be.
        """
        # The lock of the process comes first: a record lock does not keep its own threads apart.
        with self._lock:
            locked = self._descriptor is not None and self._try_lock(self._descriptor, start * VALUE_BYTES)
            try:
                values = self._values
                now = self._clock()
                position = int(values[start])
                if not count:
                    return None
                # The last of the times that are replaced, from the oldest one on.
                last = values[start + 1 + (position + count - 1) % most]
                if last >= now - seconds:
                    return last + seconds - now
                # In this order a process that is killed in between leaves a call uncounted. In the other one, the new
                # time would stay the "oldest", and the window would look full for its whole length.
                values[start] = (position + count) % most
                for place in range(position, position + count):
                    values[start + 1 + place % most] = now
                return None
            finally:
                if locked:
                    assert self._descriptor is not None, "it was locked"
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, start * VALUE_BYTES)

    def usage(self, start: int, most: int, seconds: float) -> tuple[int, float]:
        """Return how many calls a window holds, and the seconds until it holds fewer; 0 for an empty one."""
        # Without the locks: a value read while another call is counted may be older or newer, and is only reported.
        values, now = self._values, self._clock()
        # The ring is in order from its oldest time on, and so are its two parts.
        begin, end = start + 1, start + 1 + most
        oldest = begin + int(values[start])
        place = bisect_left(values, now - seconds, oldest, end)
        if place < end:
            return end - place + oldest - begin, values[place] + seconds - now
        place = bisect_left(values, now - seconds, begin, oldest)
        return (oldest - place, values[place] + seconds - now) if place < oldest else (0, 0.0)

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

    def claim_slot(self, start: int, count: int, tag: int) -> tuple[int, bool]:
        """Return the slot of a tag, of `count` slots from the offset `start`, and whether no other tag shares it.

        A tag takes the first free slot from its position on, for the lifetime of the memory; if no slot is free or
        another process does not release the slots, it shares one with others.
        """
        assert tag, "a free slot is 0"
        pointed = tag % count
        with self._lock:
            locked = self._descriptor is None or self._try_lock(self._descriptor, start * VALUE_BYTES)
            if not locked:
                return pointed, False
            try:
                for step in range(count):
                    slot = (pointed + step) % count
                    if self._values[start + slot] == tag:
                        return slot, True
                    if not self._values[start + slot]:
                        self._values[start + slot] = tag
                        return slot, True
                return pointed, False
            finally:
                if self._descriptor is not None:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, start * VALUE_BYTES)


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


def parse_rate(rate: str) -> tuple[int, int]:
    """Return the number of calls and the seconds of a rate such as `20/minute`."""
    from limits import parse

    limit = parse(rate)
    return limit.amount, limit.get_expiry()


class RateWindow:
    """A limit and the offset of its window; `start` is relative to the agent's windows if each agent has its own."""

    __slots__ = ("limit", "most", "seconds", "start")

    def __init__(self, limit: RateLimitItem, start: int) -> None:
        self.limit = limit
        self.start = start
        self.most: int = limit.amount
        self.seconds: int = limit.get_expiry()


MAX_OTHER_AGENTS: Final = 512
"""Number of agents outside the settings that have their own windows; further agents share windows. Chosen: windows use
memory only once there are calls, and further agents are still limited."""
MAX_OTHER_BYTES: Final = 2**28
"""Maximum address space for their windows, for rates that need long windows. Chosen: 256 MiB fits everywhere."""
MIN_OTHER_AGENTS: Final = 16
TAG_BYTES: Final = 6
"""Bytes of the digest by which an agent's slot is known; a double holds 48 bits exactly."""


def agent_tag(agent: str) -> int:
    """Return the number by which an agent's slot is known, which is not 0."""
    return int.from_bytes(hashlib.sha256(agent.encode("utf-8", "surrogateescape")).digest()[:TAG_BYTES]) + 1


def method_limits(settings: RateLimitSettings, methods: Collection[str]) -> dict[str, RateLimitItem]:
    """Return the limit of each method, in name order. Raises ConfigError for a limit on an unknown method."""
    from limits import parse

    if unknown := [name for name in settings.methods if name not in methods and not is_contract_method(name)]:
        raise ConfigError(f"rate_limits.methods: there is no method {', '.join(unknown)}")
    return {name: parse(settings.methods.get(name, settings.per_agent)) for name in sorted(methods)}


class RateLimiter:
    """Limits calls for each agent and method, and in total, in moving windows.

    `methods` are the served methods, `agents` the callers that the settings name; others get windows as they come.
    `memory` is a descriptor of `create_shared_memory` if several processes with the same settings share the limits.
    Raises ConfigError for a limit on an unknown method.
    """

    def __init__(
        self, settings: RateLimitSettings, methods: Collection[str], agents: Iterable[str], memory: int | None = None
    ) -> None:
        # Not loaded before it is needed: servers without rate limits do not need it.
        from limits import parse

        limits = method_limits(settings, methods)
        # The layout of the memory: for each agent, in name order, the windows of all methods in name order; then the
        # overall window, the slots of other agents, and their windows. Every process computes the same offsets from the
        # same settings.
        self._methods: dict[str, RateWindow] = {}
        size = 0
        for name, limit in limits.items():
            self._methods[name] = RateWindow(limit, size)
            size += window_value_count(limit.amount)
        self._agents = {agent: number * size for number, agent in enumerate(sorted(set(agents)))}
        self._agent_values = size
        self._others = max(MIN_OTHER_AGENTS, min(MAX_OTHER_AGENTS, MAX_OTHER_BYTES // (size * VALUE_BYTES)))
        size *= len(self._agents)
        self._overall: RateWindow | None = None
        if settings.overall:
            self._overall = RateWindow(parse(settings.overall), size)
            size += window_value_count(self._overall.limit.amount)
        self._slots = size
        self._windows = MovingWindows(size + self._others * (1 + self._agent_values), memory)

    def __call__(self, call: InboundCall, further: int = 0) -> None:
        """Count the call, or the `further` calls that its size adds. Raises RateLimited with the time to wait."""
        method, agent = call.method.name, call.agent
        assert agent is not None, "authentication comes before"
        window = self._methods[method]
        start = self._agents.get(agent)
        if start is None:
            start = self._assign_windows(agent)
        self._take(call, f"calls of {method}", window, start + window.start, further)
        if self._overall is not None:
            self._take(call, "calls of all agents", self._overall, self._overall.start, further)

    def _take(self, call: InboundCall, what: str, window: RateWindow, start: int, further: int) -> None:
        """Count the call in a window, and report the calls that are left. Raises RateLimited."""
        wait = self._windows.take(start, window.most, window.seconds, count_within(window.most, further))
        count, reset_seconds = self._windows.usage(start, window.most, window.seconds)
        report_rate_limit(call, RateLimitState(window.most, window.most - count, reset_seconds, window.seconds))
        if wait is not None:
            raise too_many_calls_in_window(what, window.limit, wait, further)

    def _assign_windows(self, agent: str) -> int:
        """Return the offset of the windows of an agent that the settings do not name."""
        slot, is_own = self._windows.claim_slot(self._slots, self._others, agent_tag(agent))
        start = self._slots + self._others + slot * self._agent_values
        if is_own:
            # Bounded by the number of slots.
            self._agents[agent] = start
        return start


def report_rate_limit(call: InboundCall, state: RateLimitState) -> None:
    """Report a limit in the answer to a call, unless it already reports a limit with fewer calls left."""
    if call.rate_limit is not None and call.rate_limit.remaining <= state.remaining:
        return
    call.rate_limit = state
    # This replaces the metadata that was set when the call began.
    call.context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id), *state.to_metadata()))


def count_within(most: int, further: int) -> int:
    """Return the number of calls to count in a window: the call, or the calls that its size adds, as far as they fit.

    A call that alone exceeds a limit is admitted if nothing else was counted.
    """
    return min(further, most - 1) if further else 1


def too_many_calls_in_window(what: str, limit: RateLimitItem, wait: float, further: int) -> RateLimited:
    """Return the error for a call beyond a limit, with the seconds until one is admitted."""
    wait = max(wait, MIN_WAIT)
    size = f" (this one counts as {further + 1} because of its size)" if further else ""
    return RateLimited(f"Too many {what}{size}: {limit} is the limit; try again in {wait:.1f} s", retry_after=wait)
