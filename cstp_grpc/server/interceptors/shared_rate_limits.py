"""Rate limits that several servers share in Redis.

While Redis does not answer, each server counts by itself or refuses, by the settings. They also bound how long a call
waits, and every call is limited.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING, Final

from cstp_grpc.common.extras import require_extra
from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.platform.config import ConfigError, RateLimitSettings, SharedRateLimitSettings
from cstp_grpc.server.interceptors.admission import InboundCall, RateLimitState
from cstp_grpc.server.interceptors.rate_limits import (
    RateLimiter,
    count_within,
    method_limits,
    report_rate_limit,
    too_many_calls_in_window,
)

if TYPE_CHECKING:
    from limits import RateLimitItem

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
"""Connections of a process to Redis; further calls wait for one as long as for an answer. Chosen: a round trip takes
less than a millisecond, so that the connections carry more calls than a process answers."""
RETRY_SECONDS: Final = 1.0
"""Seconds after a failure until one call asks Redis again. Chosen: a restarted Redis is in use after a second."""
LOST_REDIS: Final = "Redis does not answer, so rate limits are not shared"
OVERALL: Final = "all"
"""The name of the window of all agents; the names of agents' windows have two parts."""


class SharedRateLimiter:
    """Limits calls for each agent and method, and in total, in moving windows that all servers on a Redis share.

    `local` limits them while Redis does not answer. For one event loop. Raises ConfigError and MissingExtra.
    """

    def __init__(
        self, settings: RateLimitSettings, shared: SharedRateLimitSettings, methods: Collection[str], local: RateLimiter
    ) -> None:
        require_extra("redis")
        from limits import parse
        from limits.aio.storage import RedisStorage
        from limits.aio.strategies import MovingWindowRateLimiter
        from redis.asyncio import BlockingConnectionPool, RedisError
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        url = shared.url.get_secret_value()
        try:
            self._pool = BlockingConnectionPool.from_url(
                url,
                max_connections=MAX_CONNECTIONS,
                timeout=shared.timeout_seconds,
                socket_connect_timeout=shared.timeout_seconds,
                # Once, and immediately: a restarted Redis does not know old connections of the pool.
                retry=Retry(NoBackoff(), 1),
            )
        except ValueError as error:
            raise invalid_url_error() from error
        storage = RedisStorage(
            f"async+{url}",
            implementation="redispy",
            key_prefix=shared.key_prefix,
            connection_pool=self._pool,  # type: ignore[arg-type]
        )
        self._windows = MovingWindowRateLimiter(storage)
        self._failures: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError)
        self._limits = method_limits(settings, methods)
        self._overall: RateLimitItem | None = parse(settings.overall) if settings.overall else None
        self._settings = shared
        self._local = local
        self._lost_until: float | None = None
        """When Redis is asked again, in seconds of `time.monotonic`; None while it answers."""

    def verify_access(self) -> None:
        """Log a warning if Redis does not answer. Raises ConfigError if it refuses the password."""
        try:
            check_redis(self._settings)
        except Unavailable as error:
            logger.warning("%s", error.message)

    async def admit(self, call: InboundCall, further: int = 0) -> None:
        """Count the call, or the `further` calls that its size adds.

        Raises RateLimited, and Unavailable if the call cannot be counted and the settings refuse it.
        """
        if self._lost_until is not None:
            now = time.monotonic()
            if now < self._lost_until:
                self._admit_without_redis(call, further)
                return
            # This call asks; calls that arrive meanwhile do not wait for the result.
            self._lost_until = now + RETRY_SECONDS
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                await self._count(call, further)
        except self._failures as error:
            if self._lost_until is None:
                logger.warning("%s: %s", LOST_REDIS, describe_failure(error))
            self._lost_until = time.monotonic() + RETRY_SECONDS
            self._admit_without_redis(call, further)
        else:
            self._note_answer()

    async def close(self) -> None:
        await self._pool.aclose()

    async def _count(self, call: InboundCall, further: int) -> None:
        """Count the call in Redis. Raises RateLimited, and errors of Redis."""
        agent, method = call.agent or "", call.method.name
        await self._take(call, self._limits[method], f"calls of {method}", further, agent, method)
        if self._overall is not None:
            await self._take(call, self._overall, "calls of all agents", further, OVERALL)

    async def _take(self, call: InboundCall, limit: RateLimitItem, what: str, further: int, *window: str) -> None:
        """Count the call in a window. Raises RateLimited, and errors of Redis."""
        count = count_within(limit.amount, further)
        is_admitted = not count or await self._windows.hit(limit, *window, cost=count)
        free_at, remaining = await self._windows.get_window_stats(limit, *window)
        wait = free_at - time.time()
        state = RateLimitState(limit.amount, remaining, wait, limit.get_expiry())
        report_rate_limit(call, state)
        if not is_admitted:
            # Redis has answered, if with a refusal, so that the next calls may ask it again.
            self._note_answer()
            raise too_many_calls_in_window(what, limit, wait, further)

    def _note_answer(self) -> None:
        if self._lost_until is not None:
            logger.warning("Redis answers again, so rate limits are shared")
            self._lost_until = None

    def _admit_without_redis(self, call: InboundCall, further: int) -> None:
        """Count the call in this server alone, or refuse it. Raises RateLimited and Unavailable."""
        if self._settings.on_failure == "refuse":
            raise Unavailable("Calls cannot be counted now, so none is admitted; try again", retry_after=RETRY_SECONDS)
        self._local(call, further)


def check_redis(shared: SharedRateLimitSettings) -> None:
    """Send Redis a PING. Raises ConfigError if it refuses the password, and Unavailable if it does not answer."""
    require_extra("redis")
    from redis import Redis, exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    seconds = shared.timeout_seconds
    try:
        client = Redis.from_url(
            shared.url.get_secret_value(),
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as error:
        raise invalid_url_error() from error
    with closing(client):
        try:
            client.ping()
        except (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError) as error:
            raise ConfigError("rate_limits.redis.url: Redis refuses its user or password") from error
        except (exceptions.RedisError, OSError) as error:
            raise Unavailable(f"{LOST_REDIS}: {describe_failure(error)}") from error


def invalid_url_error() -> ConfigError:
    """Return the error for a URL of Redis that is invalid; it lacks the URL, which may hold a password."""
    return ConfigError("rate_limits.redis.url: is not a URL of Redis")


def describe_failure(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
