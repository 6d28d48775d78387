"""Retry calls that failed for a transient reason, within one deadline."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from cstp_grpc.contract.errors import CstpError, DeadlineExceeded, InvalidArgument
from cstp_grpc.gen import retries

T = TypeVar("T")

MAX_TIMEOUT_SECONDS: Final = 7 * 86_400.0
"""The largest timeout in seconds. Chosen: a week; sockets reject much larger values."""
MAX_BACKOFF_STEPS = 32
"""Maximum number of times the delay grows. Chosen: every cap is reached before, and the power does not overflow."""


class RetryPolicy(NamedTuple):
    """How often and with which delays a call is retried; defaults come from the service config.

    The n-th delay is random between 0 and `base` x `multiplier`^(n-1) seconds, at most `cap`; a delay demanded by the
    server takes precedence.
    """

    attempts: int = retries.ATTEMPTS
    """Maximum number of attempts; 1 disables retries."""
    base: float = retries.INITIAL_BACKOFF
    """Upper bound of the first delay, in seconds."""
    cap: float = retries.MAX_BACKOFF
    """Upper bound of every delay in seconds, unless the server demands more."""
    multiplier: float = retries.MULTIPLIER
    """Growth factor of the upper bound from one delay to the next."""


DEFAULT_RETRIES = RetryPolicy()


class RetryTimer:
    """Computes delays and deadlines; it never waits itself. `random` returns 0 to 1, `clock` seconds."""

    def __init__(self, policy: RetryPolicy, random: Callable[[], float], clock: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self._clock = clock

    def retry_delay(self, error: BaseException | None, failures: int) -> float:
        """Return the delay in seconds after `failures` failures in a row; `error` is the last one."""
        # Exactly as long, without jitter: an earlier attempt would be refused.
        if isinstance(error, CstpError) and error.retry_after is not None:
            return error.retry_after
        bound = self._policy.base * self._policy.multiplier ** min(failures - 1, MAX_BACKOFF_STEPS)
        # Full jitter: clients that failed together do not come back together.
        return self._random() * min(bound, self._policy.cap)

    def countdown(self, timeout: float | None) -> Callable[[], float | None]:
        """Return a function that returns the seconds left of `timeout` from now, or None without a limit.

        The function raises DeadlineExceeded when none are left.
        """
        return (lambda: None) if timeout is None or timeout == math.inf else self.deadline(timeout)

    def deadline(self, timeout: float) -> Callable[[], float]:
        """Return a function that returns the seconds left of a finite `timeout`, and raises DeadlineExceeded."""
        end = self._clock() + timeout
        return lambda: remaining_seconds(self._clock, end, timeout)

    def next_attempt(self, error: BaseException, failures: int, end: float, *, repeatable: bool) -> float | None:
        """Return the delay in seconds before another attempt that ends by `end`, or None if there is to be none."""
        if not (repeatable and failures < self._policy.attempts and is_transient_failure(error)):
            return None
        delay = self.retry_delay(error, failures)
        # Not retried if the deadline would pass during the delay: the caller gets the last error at once.
        return None if self._clock() + delay >= end else delay


class Retrier(RetryTimer):
    """Runs attempts until one succeeds, one fails permanently, or the deadline leaves no time for another."""

    def __init__(
        self,
        policy: RetryPolicy,
        sleep: Callable[[float], None],
        random: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(policy, random, clock)
        self._sleep = sleep

    def run(self, attempt: Callable[[float], T], timeout: float, *, repeatable: bool) -> T:
        """Return the result of `attempt`, which is called with the seconds left.

        Raises the error of the last attempt, or DeadlineExceeded.
        """
        end = self._clock() + timeout
        failures = 0
        while True:
            try:
                return attempt(remaining_seconds(self._clock, end, timeout))
            except CstpError as error:
                failures += 1
                delay = self.next_attempt(error, failures, end, repeatable=repeatable)
                if delay is None:
                    raise
            self._sleep(delay)

    def sleep(self, seconds: float, left: float | None) -> None:
        """Wait, at most for `left` seconds; None sets no limit."""
        self._sleep(seconds if left is None else min(seconds, left))


class AsyncRetrier(RetryTimer):
    """The Retrier for event loops."""

    def __init__(
        self,
        policy: RetryPolicy,
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(policy, random, clock)
        self._sleep = sleep

    async def run(self, attempt: Callable[[float], Awaitable[T]], timeout: float, *, repeatable: bool) -> T:
        end = self._clock() + timeout
        failures = 0
        while True:
            try:
                return await attempt(remaining_seconds(self._clock, end, timeout))
            except CstpError as error:
                failures += 1
                delay = self.next_attempt(error, failures, end, repeatable=repeatable)
                if delay is None:
                    raise
            await self._sleep(delay)

    async def sleep(self, seconds: float, left: float | None) -> None:
        await self._sleep(seconds if left is None else min(seconds, left))


def bound_timeout(seconds: float) -> float:
    """Return a timeout, at most MAX_TIMEOUT_SECONDS. Raises InvalidArgument."""
    if math.isnan(seconds):
        raise InvalidArgument.field("timeout", "must be a number of seconds")
    return min(seconds, MAX_TIMEOUT_SECONDS)


def remaining_seconds(clock: Callable[[], float], deadline: float, timeout: float) -> float:
    """Return the seconds until a deadline. Raises DeadlineExceeded, which names `timeout`, if it has passed."""
    left = deadline - clock()
    if left <= 0:
        raise DeadlineExceeded(f"There was no answer within {timeout:g} s")
    return left


def is_transient_failure(error: BaseException) -> bool:
    """Return whether the same call may succeed later: the contract declares its reason retriable.

    Errors of liaison agents and session conflicts are not retried here: the guide decides.
    """
    # Imported here: only failures need it.
    from cstp_grpc.contract.rpc_errors import is_retriable

    return isinstance(error, CstpError) and not error.final and is_retriable(error.reason)
