"""Work that is done again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.platform.storage.background_work import WHEN_WOKEN, PeriodicTask
from tests.waiting import SECONDS, wait_until

logger = logging.getLogger(__name__)


class Work:
    """Counts how often it is done, and raises the errors that it is given, one each time."""

    def __init__(self, pause: float | None = 3600.0, *errors: Exception) -> None:
        self.pause = pause
        self.errors = list(errors)
        self.done = 0

    def __call__(self) -> float | None:
        self.done += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.pause


@contextmanager
def doing(work: Callable[[], float | None], interval: float = 0.001, delay: float = 0.0) -> Iterator[PeriodicTask]:
    periodic = PeriodicTask("test", work, interval, logger, "nothing is done", delay=delay)
    periodic.start()
    try:
        yield periodic
    finally:
        periodic.stop()


def test_it_works_at_once_and_when_it_is_woken() -> None:
    work = Work()
    with doing(work) as periodic:
        wait_until(lambda: work.done == 1, "it works at the start")
        periodic.wake()
        wait_until(lambda: work.done == 2, "it works when it is woken")
    assert work.done == 2


def test_it_works_when_its_pause_is_over() -> None:
    work = Work(0.001)
    with doing(work):
        wait_until(lambda: work.done > 2, "it goes on")


def test_without_a_pause_of_its_own_it_works_at_the_interval() -> None:
    work = Work(None)
    with doing(work):
        wait_until(lambda: work.done > 2, "it goes on")


def test_it_can_rest_until_it_is_woken() -> None:
    work = Work(WHEN_WOKEN)
    with doing(work) as periodic:
        wait_until(lambda: work.done == 1, "it works at the start")
        periodic.wake()
        wait_until(lambda: work.done == 2, "it works when it is woken")


def test_one_that_begins_later_can_be_woken_or_stopped_before() -> None:
    work = Work()
    with doing(work, delay=3600) as periodic:
        periodic.wake()
        wait_until(lambda: work.done == 1, "it works when it is woken")
    never = Work()
    with doing(never, delay=3600):
        pass
    assert never.done == 0


def test_one_that_is_woken_at_work_works_once_more() -> None:
    begun, may_end = threading.Event(), threading.Event()
    done = []

    def work() -> None:
        done.append(1)
        begun.set()
        assert may_end.wait(SECONDS)

    with doing(work, interval=3600) as periodic:
        assert begun.wait(SECONDS)
        periodic.wake()
        may_end.set()
        wait_until(lambda: len(done) == 2, "it works once more")


@pytest.mark.parametrize("error", [Unavailable("not now"), RuntimeError("unforeseen")])
def test_a_failure_is_logged_once_until_it_succeeds(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    work = Work(WHEN_WOKEN, error, error)
    with doing(work) as periodic, caplog.at_level(logging.WARNING):
        wait_until(lambda: work.done == 3, "it succeeds")
        assert len(caplog.records) == 1
        work.errors.append(error)
        periodic.wake()
        wait_until(lambda: work.done == 5, "it succeeds again")
    assert [record.message.startswith("nothing is done") for record in caplog.records] == [True, True]


def test_it_tells_its_work_that_it_is_to_end() -> None:
    begun = threading.Event()
    found: list[PeriodicTask] = []

    def work() -> None:
        begun.set()
        wait_until(lambda: bool(found) and found[0].is_stopping(), "it is told")

    with doing(work) as periodic:
        assert begun.wait(SECONDS)
        found.append(periodic)


def test_one_that_was_never_started_can_be_stopped() -> None:
    PeriodicTask("test", Work(), 1, logger, "nothing is done").stop()
