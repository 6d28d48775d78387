"""Where the work of a call is done: on the event loop, or on the threads of its lane.

Waiting costs no thread. What may block or take long (searches, models, files, a database server) runs on the threads of
a lane, so that calls of one kind cannot use up what the others need.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import StrEnum
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LaneName(StrEnum):
    """The kinds of calls that must not wait for each other."""

    CHECKS = "checks"
    """What agents wait for before they act: checks and announcements."""
    QUERIES = "queries"
    """Searches."""
    ROUTINGS = "routings"
    """Handing chat sessions over, some of which wait for a remote agent to confirm."""
    OTHERS = "others"
    """All else: recording, imports, listings, nodes, sessions, tasks."""


LANES: Final[Mapping[str, LaneName]] = {
    "cstp.checkGuardrails": LaneName.CHECKS,
    "cstp.announceIntent": LaneName.CHECKS,
    "liaison.routeToLiaisonAgent": LaneName.ROUTINGS,
    "cstp.queryDecisions": LaneName.QUERIES,
}
"""The lane of each method that is not one of the others, by its JSON-RPC name."""

THREADS: Final[Mapping[LaneName, int]] = {
    LaneName.CHECKS: 4,
    LaneName.QUERIES: 2,
    LaneName.ROUTINGS: 8,
    LaneName.OTHERS: 8,
}
"""How many threads each lane has. More than two for searches would only compete for the interpreter's lock; the others
mostly wait for the database."""

CLOSE_SECONDS: Final = 2.0
"""How long work that has begun is waited for when a server stops; a database that is silent may hold it for longer."""

SHORT: Final = frozenset({"cstp.getAccess"})
"""Methods whose plain functions only compute for microseconds, so that a thread would cost more than they do."""


PASSES_BETWEEN: Final = 6
"""How many passes of the event loop lie between two turns.

grpc.aio accepts one call after the other, each in about three passes. With fewer passes between turns, searches wait
unaccepted instead of for their turn, and a check waits among them.
"""


class LoopTurns:
    """Turns on the event loop, in the order in which they are asked for.

    What became ready meanwhile runs between two of them, so that many short functions do not add up to a long one.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return when it is the caller's turn, which lasts until it waits for something."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken = True
            loop.call_soon(self._pass_on, loop, PASSES_BETWEEN)

    def _pass_on(self, loop: asyncio.AbstractEventLoop, passes: int) -> None:
        """Give the turn to the first that still waits, after so many more passes."""
        if passes:
            loop.call_soon(self._pass_on, loop, passes - 1)
            return
        while self._waiting:
            turn = self._waiting.popleft()
            # Who was cancelled does not need it any more.
            if not turn.done():
                turn.set_result(None)
                loop.call_soon(self._pass_on, loop, PASSES_BETWEEN)
                return
        self._taken = False


class Lane:
    """Bounded threads for the blocking work of one kind of calls, and turns on the event loop for the short work."""

    def __init__(self, name: LaneName) -> None:
        self._turns = LoopTurns()
        self._pool = ThreadPoolExecutor(THREADS[name], thread_name_prefix=name)
        self._begun: set[Future[Any]] = set()

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, run on a thread in the context of the caller. Raises what it raises.

        A function that has begun goes on when the caller is cancelled.
        """
        context = contextvars.copy_context()
        future = self._pool.submit(lambda: context.run(function, *args, **kwargs))
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        return await asyncio.wrap_future(future)

    async def take_turn(self) -> None:
        """Return when it is the caller's turn on the event loop, which lasts until it waits for something."""
        await self._turns.take()

    async def run_short(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns that takes less than a millisecond, run on the event loop when it is its turn.

        Raises what it raises.
        """
        await self._turns.take()
        return function(*args, **kwargs)

    def close(self) -> None:
        """Begin nothing more, and wait a little for what has begun: it may hold a connection to the database."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(set(self._begun), CLOSE_SECONDS)


class Lanes:
    """All lanes of a server."""

    def __init__(self) -> None:
        self._lanes = {name: Lane(name) for name in LaneName}

    def __getitem__(self, name: LaneName) -> Lane:
        return self._lanes[name]

    def of_method(self, name: str) -> Lane:
        """Return the lane of a method by its JSON-RPC name."""
        return self._lanes[LANES.get(name, LaneName.OTHERS)]

    def close(self) -> None:
        """Close all lanes."""
        for lane in self._lanes.values():
            lane.close()
