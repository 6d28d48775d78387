"""The writer as coroutines wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

import pytest

from cstp_grpc.contract.errors import Conflict, InternalError, Unavailable
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.write_jobs import GATHER_SECONDS, QUIET_PASSES
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.platform.storage.writer.jobs import (
    BOUND,
    TransactionCounter,
    Ts,
    add,
    add_and_raise,
    begin,
    kept_busy,
    names,
)

# Coroutines


def test_a_coroutine_gets_its_result_once_it_is_committed(database: Database, writer: GroupCommitWriter) -> None:
    async def run() -> None:
        assert await writer.write(add("a")) == "a"
        assert names(database) == {"a"}
        with pytest.raises(InternalError):
            await writer.write(add("a"))
        with pytest.raises(Conflict):
            await writer.write(add_and_raise("b", Conflict("no")))
        assert await writer.write(add("b"), alone=True) == "b"

    asyncio.run(run())
    assert names(database) == {"a", "b"}


def test_a_coroutines_job_never_runs_on_its_loop(writer: GroupCommitWriter) -> None:
    async def run() -> set[int]:
        return {await writer.write(lambda unit_of_work: threading.get_ident()) for _ in range(3)}

    assert threading.get_ident() not in asyncio.run(run())


def test_a_commit_wakes_each_loop_once(database: Database, writer: GroupCommitWriter) -> None:
    woken: list[object] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(
            self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
        ) -> asyncio.Handle:
            woken.append(self)
            return super().call_soon_threadsafe(callback, *args, context=context)

    async def run() -> list[str]:
        with kept_busy(writer):
            tasks = [await begin(writer.write(add(str(number)))) for number in range(20)]
        return await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(run()) == [str(number) for number in range(20)]
    assert len(woken) == 1


class StoppedClock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still unless it is set."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_jobs_that_follow_each_other_closely_are_committed_together(writer: GroupCommitWriter) -> None:
    counter = TransactionCounter()

    async def run() -> list[str]:
        # Two at once tell that there may be more.
        tasks = [asyncio.create_task(writer.write(counter.counted(add(name)))) for name in "ab"]
        for name in "cdefgh":
            for _ in range(QUIET_PASSES - 1):
                await asyncio.sleep(0)
            tasks.append(asyncio.create_task(writer.write(counter.counted(add(name)))))
        return await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        assert runner.run(run()) == list("abcdefgh")
    assert counter.count == 1


def test_jobs_do_not_wait_for_others_beyond_a_time(writer: GroupCommitWriter) -> None:
    begun = threading.Event()

    async def run(loop: StoppedClock) -> None:
        tasks = [asyncio.create_task(writer.write(lambda _: begun.set())) for _ in range(2)]
        # One follows in each pass, so that none is ever quiet.
        for _ in range(20):
            await asyncio.sleep(0)
            tasks.append(asyncio.create_task(writer.write(lambda _: None)))
            loop.now += GATHER_SECONDS / 10
        # No pass can hand them over while this blocks the loop: they have been.
        assert begun.wait(BOUND)
        await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, StoppedClock)
        runner.run(run(loop))


def test_a_writer_that_closes_refuses_what_it_was_not_given_yet(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=BOUND)

    async def run() -> None:
        task = asyncio.create_task(writer.write(add("a")))
        asyncio.get_running_loop().call_soon(writer.close)
        with pytest.raises(Unavailable, match="stopping"):
            await task

    asyncio.run(run())
    assert names(database) == set()


def test_two_loops_each_get_their_own_results(database: Database, writer: GroupCommitWriter) -> None:
    async def run(loop: int) -> list[str]:
        return await asyncio.gather(*(writer.write(add(f"{loop}-{number}")) for number in range(30)))

    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda loop: asyncio.run(run(loop)), range(2))
        assert list(found) == [[f"{loop}-{number}" for number in range(30)] for loop in range(2)]


def test_a_loop_that_ended_harms_nobody_else(database: Database, writer: GroupCommitWriter) -> None:
    loop = asyncio.new_event_loop()
    with kept_busy(writer):
        abandoned = loop.create_task(writer.write(add("a")))
        loop.run_until_complete(asyncio.sleep(0))
        other = writer.submit(add("b"))
        abandoned.get_coro().close()
        loop.close()
    assert other.result(BOUND) == "b"
    assert writer.run(add("c")) == "c"


def test_a_coroutine_that_is_cancelled_takes_back_a_job_that_was_not_begun(
    database: Database, writer: GroupCommitWriter
) -> None:
    async def run() -> None:
        with kept_busy(writer):
            cancelled, kept = await begin(writer.write(add("a"))), await begin(writer.write(add("b")))
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        await kept

    asyncio.run(run())
    assert names(database) == {"b"}


def test_a_coroutine_that_is_cancelled_late_changes_nothing(database: Database, writer: GroupCommitWriter) -> None:
    async def run() -> None:
        begun, go_on = threading.Event(), threading.Event()

        def job(unit_of_work: UnitOfWork) -> str:
            begun.set()
            assert go_on.wait(BOUND)
            return add("a")(unit_of_work)

        task = await begin(writer.write(job))
        assert begun.wait(BOUND)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await writer.write(add("b")) == "b"

    asyncio.run(run())
    assert names(database) == {"a", "b"}


def test_a_coroutine_that_waits_too_long_is_told_and_the_job_is_not_begun(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=0.05)

    async def run() -> None:
        with kept_busy(writer), pytest.raises(Unavailable, match=r"not on disk after 0\.05 seconds"):
            await writer.write(add("late"))

    asyncio.run(run())
    assert writer.submit(add("next")).result(BOUND) == "next"
    assert names(database) == {"next"}
    writer.close()


def test_a_closed_writer_refuses_coroutines(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=BOUND)
    writer.close()
    with pytest.raises(Unavailable, match="stopping"):
        asyncio.run(writer.write(add("more")))
