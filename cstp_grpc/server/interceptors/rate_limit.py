"""How often an agent may call."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from cstp_grpc.config import ConfigError, RateLimitSettings
from cstp_grpc.errors import RateLimited
from cstp_grpc.server.interceptors.call import Call

LEAST_WAIT = 0.001
"""Seconds; a limit that is free again by the time it is asked still has to be asked again."""


class RateLimiting:
    """Limits calls for each agent and method, and for all together, in moving windows.

    `methods` are the names of those there are. Raises ConfigError for a limit on any other.
    """

    def __init__(self, settings: RateLimitSettings, methods: Container[str]) -> None:
        if unknown := [name for name in settings.methods if name not in methods]:
            raise ConfigError(f"rate_limits.methods: there is no method {', '.join(unknown)}")
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_agent = parse(settings.per_agent)
        self._methods: Mapping[str, RateLimitItem] = {name: parse(rate) for name, rate in settings.methods.items()}
        self._overall = parse(settings.overall) if settings.overall else None

    def __call__(self, call: Call) -> None:
        """Count the call. Raises RateLimited with the seconds to wait."""
        method = call.method.name
        self._hit(self._methods.get(method, self._per_agent), f"calls of {method}", call.agent or "", method)
        if self._overall is not None:
            self._hit(self._overall, "calls of all agents")

    def _hit(self, limit: RateLimitItem, what: str, *identifiers: str) -> None:
        if self._limiter.hit(limit, *identifiers):
            return
        reset = self._limiter.get_window_stats(limit, *identifiers).reset_time
        wait = max(reset - time.time(), LEAST_WAIT)
        raise RateLimited(f"Too many {what}: {limit} is the limit; try again in {wait:.1f} s", retry_after=wait)
