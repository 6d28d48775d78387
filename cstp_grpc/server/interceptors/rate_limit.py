"""How often an agent may call."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from limits import RateLimitItem, parse

from cstp_grpc.config import ConfigError, RateLimitSettings
from cstp_grpc.errors import RateLimited
from cstp_grpc.server.interceptors.call import Call
from cstp_grpc.server.interceptors.moving_windows import MovingWindows, values_of

LEAST_WAIT = 0.001
"""Seconds; a limit that is free again by the time it is asked still has to be asked again."""


@dataclass(frozen=True, slots=True)
class Window:
    """Where the calls that a limit is about are counted; `start` is relative where each agent has its own."""

    limit: RateLimitItem
    start: int


class RateLimiting:
    """Limits calls for each agent and method, and for all together, in moving windows.

    `methods` are the names of those there are, `agents` who may call; `memory` is that of `create_shared_memory` where
    limits hold for several processes with the same settings. Raises ConfigError for a limit on any other method.
    """

    def __init__(
        self, settings: RateLimitSettings, methods: Collection[str], agents: Iterable[str], memory: int | None = None
    ) -> None:
        if unknown := [name for name in settings.methods if name not in methods]:
            raise ConfigError(f"rate_limits.methods: there is no method {', '.join(unknown)}")
        limits = {name: parse(settings.methods.get(name, settings.per_agent)) for name in sorted(methods)}
        self._methods: dict[str, Window] = {}
        size = 0
        for name, limit in limits.items():
            self._methods[name] = Window(limit, size)
            size += values_of(limit.amount)
        self._agents = {agent: number * size for number, agent in enumerate(sorted(set(agents)))}
        size *= len(self._agents)
        self._overall: Window | None = None
        if settings.overall:
            self._overall = Window(parse(settings.overall), size)
            size += values_of(self._overall.limit.amount)
        self._windows = MovingWindows(size, memory)

    def __call__(self, call: Call) -> None:
        """Count the call. Raises RateLimited with the seconds to wait."""
        method, agent = call.method.name, call.agent
        assert agent is not None, "authentication comes before"
        self._take(self._methods[method], self._agents[agent], f"calls of {method}")
        if self._overall is not None:
            self._take(self._overall, 0, "calls of all agents")

    def _take(self, window: Window, start: int, what: str) -> None:
        limit = window.limit
        free_at = self._windows.take(start + window.start, limit.amount, limit.get_expiry())
        if free_at is None:
            return
        wait = max(free_at - time.time(), LEAST_WAIT)
        raise RateLimited(f"Too many {what}: {limit} is the limit; try again in {wait:.1f} s", retry_after=wait)
