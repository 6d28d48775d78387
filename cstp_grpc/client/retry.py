"""Repeating calls that may succeed later, within one deadline."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception

from cstp_grpc.client.service_config import service_config
from cstp_grpc.contract.error_reasons import is_retriable
from cstp_grpc.errors import CstpError, DeadlineExceeded

T = TypeVar("T")

BACKOFF = service_config().backoff

MAX_GROWTHS = 32
"""How often a pause grows at the most, so that it stays a number however long attempts go on."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a call is repeated; what is not said is that of the service config.

    The n-th pause is random between 0 and `base` x `multiplier`^(n-1) seconds, at most `cap`; where the server says how
    long to wait, the pause is that long.
    """

    attempts: int = BACKOFF.attempts
    """Attempts in all; 1 never repeats."""
    base: float = BACKOFF.initial
    """Seconds that the first pause may take."""
    cap: float = BACKOFF.most
    """Seconds that any pause may take, unless the server asks for more."""
    multiplier: float = BACKOFF.multiplier
    """How much longer than the one before it each pause may take."""


DEFAULT_RETRIES = RetryPolicy()


class Rules(TypedDict):
    """When to make another attempt, as tenacity takes it, with threads and in an event loop alike."""

    retry: retry_if_exception
    wait: Callable[[RetryCallState], float]
    stop: Callable[[RetryCallState], bool]
    reraise: bool


class Pace:
    """Says what to do after a failure: nothing here waits. `random` is from 0 to 1; `clock` counts seconds."""

    def __init__(self, policy: RetryPolicy, random: Callable[[], float], clock: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self._clock = clock

    def pause(self, error: BaseException | None, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row, of which `error` is the last."""
        if isinstance(error, CstpError) and error.retry_after is not None:
            return error.retry_after
        bound = self._policy.base * self._policy.multiplier ** min(failures - 1, MAX_GROWTHS)
        return self._random() * min(bound, self._policy.cap)

    def countdown(self, timeout: float | None) -> Callable[[], float | None]:
        """Return a function that tells how many of `timeout` seconds are left from now on; None where there is no end.

        It raises DeadlineExceeded when none are.
        """
        return (lambda: None) if timeout is None or timeout == math.inf else self.deadline(timeout)

    def deadline(self, timeout: float) -> Callable[[], float]:
        """Return a function that tells how many of `timeout` seconds are left from now on, likewise."""
        end = self._clock() + timeout
        return lambda: time_left(self._clock, end, timeout)

    def rules(self, timeout: float, *, repeatable: bool) -> Rules:
        """Return when to make another attempt at a call that may take so many seconds from now on."""
        end = self._clock() + timeout

        def stop(state: RetryCallState) -> bool:
            spent = self._clock() + state.upcoming_sleep >= end
            return spent or not repeatable or state.attempt_number >= self._policy.attempts

        def wait(state: RetryCallState) -> float:
            return self.pause(state.outcome.exception() if state.outcome else None, state.attempt_number)

        return Rules(retry=retry_if_exception(is_passing), wait=wait, stop=stop, reraise=True)


class Retrier(Pace):
    """Makes attempts until one succeeds, fails for good, or the deadline leaves no time for another."""

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
        """Return what `attempt` returns; it is called with the seconds that are left.

        Raises what the last attempt raised, or DeadlineExceeded.
        """
        left = self.deadline(timeout)
        return Retrying(sleep=self._sleep, **self.rules(timeout, repeatable=repeatable))(lambda: attempt(left()))

    def sleep(self, seconds: float, left: float | None) -> None:
        """Wait, but no longer than is left; None sets no bound."""
        self._sleep(seconds if left is None else min(seconds, left))


class AsyncRetrier(Pace):
    """Makes attempts likewise in an event loop."""

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
        """Return what `attempt` returns; it is called with the seconds that are left.

        Raises what the last attempt raised, or DeadlineExceeded.
        """
        left = self.deadline(timeout)

        async def once() -> T:
            return await attempt(left())

        return await AsyncRetrying(sleep=self._sleep, **self.rules(timeout, repeatable=repeatable))(once)

    async def sleep(self, seconds: float, left: float | None) -> None:
        """Wait, but no longer than is left; None sets no bound."""
        await self._sleep(seconds if left is None else min(seconds, left))


def time_left(clock: Callable[[], float], deadline: float, timeout: float) -> float:
    """Return the seconds until a deadline that was `timeout` seconds away. Raises DeadlineExceeded when it is over."""
    left = deadline - clock()
    if left <= 0:
        raise DeadlineExceeded(f"There was no answer within {timeout:g} s")
    return left


def is_passing(error: BaseException) -> bool:
    """Return whether the same call may succeed later: the contract declares its reason retriable.

    Whether to wait for a liaison agent, or to hand over what has changed meanwhile, is for the guide to decide.
    """
    return isinstance(error, CstpError) and not error.final and is_retriable(error.reason)
