"""When a call is repeated, and for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.client.retry import Retrier, RetryPolicy
from cstp_grpc.contract.errors import (
    CstpError,
    DeadlineExceeded,
    LiaisonAgentUnavailable,
    RateLimited,
    ServerUnreachable,
    SessionUpdateFailed,
    Unavailable,
)
from cstp_grpc.contract.rpc_errors import ERROR_CLASSES
from tests.named_case import named_case

ROUNDING = 1e-6


class World:
    """A clock that only sleeping and working move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.given: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def retrier(self, policy: RetryPolicy, jitter: float = 1.0) -> Retrier:
        return Retrier(policy, self.sleep, lambda: jitter, lambda: self.now)

    def attempts(self, *outcomes: CstpError | str, work: float = 0.0) -> Callable[[float], str]:
        """Return an attempt that takes `work` seconds and comes to the next outcome each time."""
        remaining = list(outcomes)

        def attempt(left: float) -> str:
            self.given.append(left)
            self.now += work
            outcome = remaining.pop(0)
            if isinstance(outcome, CstpError):
                raise outcome
            return outcome

        return attempt


def test_what_passes_is_tried_again_with_growing_pauses() -> None:
    world = World()
    attempt = world.attempts(Unavailable("a"), ServerUnreachable("b"), Unavailable("c"), "done")
    assert world.retrier(RetryPolicy(attempts=4, base=0.1, cap=0.3)).run(attempt, 30, repeatable=True) == "done"
    assert world.slept == pytest.approx([0.1, 0.2, 0.3])


def test_the_pause_is_jittered() -> None:
    world = World()
    world.retrier(RetryPolicy(base=0.4), jitter=0.25).run(world.attempts(Unavailable("a"), "done"), 30, repeatable=True)
    assert world.slept == pytest.approx([0.1])


def test_a_rate_limit_is_waited_out_as_long_as_it_says() -> None:
    world = World()
    attempt = world.attempts(RateLimited("slower", retry_after=7.5), "done")
    assert world.retrier(RetryPolicy(cap=1)).run(attempt, 30, repeatable=True) == "done"
    assert world.slept == [7.5]


def test_a_rate_limit_without_a_delay_is_waited_out_with_growing_pauses() -> None:
    world = World()
    attempt = world.attempts(RateLimited("a"), RateLimited("b"), "done")
    assert world.retrier(RetryPolicy(base=0.1)).run(attempt, 30, repeatable=True) == "done"
    assert world.slept == pytest.approx([0.1, 0.2])


def test_a_rate_limit_without_a_delay_is_raised_when_the_attempts_are_used_up() -> None:
    world = World()
    attempt = world.attempts(*[RateLimited("no")] * 4, "done")
    with pytest.raises(RateLimited):
        world.retrier(RetryPolicy(attempts=4)).run(attempt, 30, repeatable=True)


def test_a_rate_limit_that_the_server_calls_final_is_final() -> None:
    world = World()
    final = RateLimited("no")
    final.final = True
    with pytest.raises(RateLimited):
        world.retrier(RetryPolicy()).run(world.attempts(final, "done"), 30, repeatable=True)
    assert world.slept == []


PASSING = (RateLimited, Unavailable)


def test_what_does_not_pass_is_final() -> None:
    for kind in [c for c in ERROR_CLASSES.values() if not issubclass(c, PASSING)]:
        with named_case(kind):
            world = World()
            with pytest.raises(kind):
                world.retrier(RetryPolicy()).run(world.attempts(kind("no"), "done"), 30, repeatable=True)
            assert world.slept == []


@pytest.mark.parametrize("kind", [LiaisonAgentUnavailable, SessionUpdateFailed])
def test_whether_to_hand_over_later_is_left_to_the_guide(kind: type[CstpError]) -> None:
    world = World()
    attempt = world.attempts(kind("not now", retry_after=0.5), "done")
    with pytest.raises(kind):
        world.retrier(RetryPolicy()).run(attempt, 30, repeatable=True)
    assert world.slept == []


def test_what_must_not_be_repeated_is_not() -> None:
    world = World()
    with pytest.raises(Unavailable):
        world.retrier(RetryPolicy()).run(world.attempts(Unavailable("a"), "done"), 30, repeatable=False)
    assert world.slept == []


def test_the_last_error_is_raised_when_the_attempts_are_used_up() -> None:
    world = World()
    attempt = world.attempts(Unavailable("first"), Unavailable("second"), "done")
    with pytest.raises(Unavailable, match="second"):
        world.retrier(RetryPolicy(attempts=2)).run(attempt, 30, repeatable=True)


def test_nobody_waits_for_a_delay_beyond_the_deadline() -> None:
    world = World()
    with pytest.raises(RateLimited):
        world.retrier(RetryPolicy()).run(world.attempts(RateLimited("slower", retry_after=31)), 30, repeatable=True)
    assert world.slept == []


def test_each_attempt_is_given_what_is_left() -> None:
    world = World()
    attempt = world.attempts(Unavailable("a"), "done", work=2.0)
    world.retrier(RetryPolicy(base=1.0)).run(attempt, 10, repeatable=True)
    assert world.given == pytest.approx([10.0, 7.0])


def test_no_time_at_all_means_no_attempt() -> None:
    world = World()
    with pytest.raises(DeadlineExceeded):
        world.retrier(RetryPolicy()).run(world.attempts("done"), 0, repeatable=True)
    assert world.given == []


@given(
    attempts=st.integers(1, 6),
    base=st.floats(0.001, 5),
    timeout=st.floats(0.1, 20),
    work=st.floats(0, 3),
    jitter=st.floats(0, 1),
    delays=st.lists(st.none() | st.floats(0, 30), min_size=6, max_size=6),
)
def test_sleeping_never_outlasts_the_deadline(
    attempts: int, base: float, timeout: float, work: float, jitter: float, delays: list[float | None]
) -> None:
    world = World()
    failures = [Unavailable("no") if delay is None else RateLimited("no", retry_after=delay) for delay in delays]
    started = world.now
    retrier = world.retrier(RetryPolicy(attempts=attempts, base=base), jitter)
    with pytest.raises((Unavailable, RateLimited, DeadlineExceeded)):
        retrier.run(world.attempts(*failures, work=work), timeout, repeatable=True)
    assert 1 <= len(world.given) <= attempts
    assert all(0 < left <= timeout + ROUNDING for left in world.given)
    assert world.now - work * len(world.given) - started <= timeout + ROUNDING
