"""Leaving a peer alone that keeps failing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cstp_grpc.modules.federation.peer import TRIAL_SECONDS, CircuitBreaker

FAILURES = 3
SECONDS = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> CircuitBreaker:
    """Return the breaker of a peer that has just failed often enough."""
    breaker = CircuitBreaker(FAILURES, SECONDS, clock)
    for _ in range(FAILURES):
        assert breaker.try_admit()
        breaker.record_failure()
    return breaker


def test_a_peer_is_left_alone_after_failures_in_a_row() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.try_admit()
    clock.now += SECONDS
    assert breaker.try_admit()


def test_failures_with_an_answer_between_them_are_not_in_a_row() -> None:
    breaker = CircuitBreaker(2, SECONDS, Clock())
    for _ in range(5):
        breaker.record_failure()
        breaker.record_success()
    assert breaker.try_admit()


def test_an_answer_to_the_trial_ends_it_and_a_failure_begins_it_anew() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += SECONDS
    assert breaker.try_admit()
    breaker.record_failure()
    assert not breaker.try_admit()
    clock.now += SECONDS
    assert breaker.try_admit()
    breaker.record_success()
    assert all(breaker.try_admit() for _ in range(5))


def test_a_trial_that_was_abandoned_makes_room_for_another() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += SECONDS
    assert breaker.try_admit()
    breaker.record_abandonment()
    assert breaker.try_admit()
    assert not breaker.try_admit()


def test_a_trial_that_was_lost_locks_nobody_out_for_ever() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += SECONDS
    assert breaker.try_admit()
    clock.now += TRIAL_SECONDS
    assert breaker.try_admit()


def test_of_many_threads_one_makes_the_trial() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += SECONDS
    together = threading.Barrier(8)

    def ask(_: int) -> bool:
        together.wait(10)
        return breaker.try_admit()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 1


class Breaking(RuleBasedStateMachine):
    """Random calls, checked against what a breaker is for."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = CircuitBreaker(FAILURES, SECONDS, self.clock)
        self.in_a_row = 0
        self.failed_at = 0.0
        self.trial_at: float | None = None

    @property
    def broken(self) -> bool:
        return self.in_a_row >= FAILURES

    @rule(seconds=st.sampled_from([0.0, 1.0, SECONDS - 1, SECONDS, TRIAL_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def ask(self) -> None:
        rested = self.clock.now >= self.failed_at + SECONDS
        on_trial = self.trial_at is not None and self.clock.now < self.trial_at + TRIAL_SECONDS
        admitted = self.breaker.try_admit()
        assert admitted is (not self.broken or (rested and not on_trial))
        if admitted and self.broken:
            self.trial_at = self.clock.now

    @rule()
    def succeed(self) -> None:
        self.breaker.record_success()
        self.in_a_row, self.trial_at = 0, None

    @rule()
    def fail(self) -> None:
        self.breaker.record_failure()
        self.in_a_row += 1
        self.failed_at, self.trial_at = self.clock.now, None

    @precondition(lambda self: self.trial_at is not None)
    @rule()
    def abandon(self) -> None:
        self.breaker.record_abandonment()
        self.trial_at = None

    @invariant()
    def a_trial_is_of_a_broken_peer(self) -> None:
        assert self.trial_at is None or self.broken


TestBreaking = Breaking.TestCase
