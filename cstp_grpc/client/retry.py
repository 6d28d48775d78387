"""Repeating calls that may succeed later, within one deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from cstp_grpc.errors import CstpError, DeadlineExceeded, RateLimited, Unavailable

T = TypeVar("T")

MAX_DOUBLINGS = 32
"""How often a pause doubles at the most, so that it stays a number however long attempts go on."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a call is repeated.

    The n-th pause is random between 0 and `base` x 2^(n-1) seconds, at most `cap`; where the server says how long to
    wait, the pause is that long.
    """

    attempts: int = 4
    """Attempts in all; 1 never repeats."""
    base: float = 0.1
    """Seconds that the first pause may take."""
    cap: float = 5.0
    """Seconds that any pause may take, unless the server asks for more."""


DEFAULT_RETRIES = RetryPolicy()


class Retrier:
    """Makes attempts until one succeeds, fails for good, or the deadline leaves no time for another.

    `random` returns a number from 0 to 1; `clock` counts seconds.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        sleep: Callable[[float], None],
        random: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._sleep = sleep
        self._random = random
        self._clock = clock

    def run(self, attempt: Callable[[float], T], timeout: float, *, repeatable: bool) -> T:
        """Return what `attempt` returns; it is called with the seconds that are left.

        Raises what the last attempt raised, or DeadlineExceeded.
        """
        deadline = self._clock() + timeout

        def once() -> T:
            return attempt(time_left(self._clock, deadline, timeout))

        def done(state: RetryCallState) -> bool:
            spent = self._clock() + state.upcoming_sleep >= deadline
            return spent or state.attempt_number >= self._policy.attempts

        if not repeatable:
            return once()
        retrying = Retrying(
            sleep=self._sleep,
            retry=retry_if_exception(is_passing),
            wait=self._pause,
            stop=done,
            reraise=True,
        )
        return retrying(once)

    def pause(self, error: BaseException | None, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row, of which `error` is the last."""
        if isinstance(error, CstpError) and error.retry_after is not None:
            return error.retry_after
        bound: float = self._policy.base * 2 ** min(failures - 1, MAX_DOUBLINGS)
        return self._random() * min(bound, self._policy.cap)

    def sleep(self, seconds: float, left: float | None) -> None:
        """Wait, but no longer than is left; None sets no bound."""
        self._sleep(seconds if left is None else min(seconds, left))

    def countdown(self, timeout: float | None) -> Callable[[], float | None]:
        """Return a function that tells how many of `timeout` seconds are left from now on; None where it is None.

        It raises DeadlineExceeded when none are.
        """
        if timeout is None:
            return lambda: None
        deadline = self._clock() + timeout
        return lambda: time_left(self._clock, deadline, timeout)

    def _pause(self, state: RetryCallState) -> float:
        return self.pause(state.outcome.exception() if state.outcome else None, state.attempt_number)


def time_left(clock: Callable[[], float], deadline: float, timeout: float) -> float:
    """Return the seconds until a deadline that was `timeout` seconds away. Raises DeadlineExceeded when it is over."""
    left = deadline - clock()
    if left <= 0:
        raise DeadlineExceeded(f"There was no answer within {timeout:g} s")
    return left


def is_passing(error: BaseException) -> bool:
    """Whether the same call may succeed later: the server is unavailable, or says how long to wait.

    Whether to wait for a liaison agent, or to hand over what has changed meanwhile, is for the guide to decide.
    """
    return isinstance(error, Unavailable) or (isinstance(error, RateLimited) and error.retry_after is not None)
