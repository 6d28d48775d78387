"""Where the work of calls is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from cstp_grpc.server.execution import CallPool, CallPools, PoolName


@pytest.fixture
def lane() -> Iterator[CallPool]:
    lanes = CallPools()
    yield lanes[PoolName.QUERIES]
    lanes.close()


def test_between_two_short_functions_runs_what_became_ready_meanwhile(lane: CallPool) -> None:
    events: list[str] = []

    async def others(ended: asyncio.Event) -> None:
        while not ended.is_set():
            events.append("other")
            await asyncio.sleep(0)

    async def main() -> None:
        ended = asyncio.Event()
        other = asyncio.create_task(others(ended))
        await asyncio.gather(*(lane.run_short(events.append, f"short {number}") for number in range(5)))
        ended.set()
        await other

    asyncio.run(main())

    assert [event for event in events if event != "other"] == [f"short {number}" for number in range(5)]
    # A check needs several passes of the loop until it is accepted and judged.
    turns = [place for place, event in enumerate(events) if event != "other"]
    assert all(later - earlier > 3 for earlier, later in pairwise(turns))


def test_who_was_cancelled_takes_no_turn_from_others(lane: CallPool) -> None:
    done: list[int] = []

    async def main() -> None:
        tasks = [asyncio.create_task(lane.run_short(done.append, number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lane.run_short(done.append, 4)

    asyncio.run(main())

    assert done == [0, 2, 3, 4]


def test_short_functions_run_on_the_event_loop_and_others_do_not(lane: CallPool) -> None:
    async def main() -> None:
        assert await lane.run_short(threading.get_ident) == threading.get_ident()
        assert await lane.run(threading.get_ident) != threading.get_ident()

    asyncio.run(main())


def test_an_error_of_a_short_function_reaches_its_caller_and_the_next_has_its_turn(lane: CallPool) -> None:
    def fail() -> None:
        raise KeyError("gone")

    async def main() -> None:
        failed, answered = await asyncio.gather(lane.run_short(fail), lane.run_short(int, "7"), return_exceptions=True)
        assert isinstance(failed, KeyError)
        assert answered == 7

    asyncio.run(main())
