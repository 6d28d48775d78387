"""Where the work of a call is done: on the event loop, or on the threads of its lane.

Waiting costs no thread. What may block or take long (searches, models, files, a database server) runs on the threads of
a lane, so that calls of one kind cannot use up what the others need.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import StrEnum
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LaneName(StrEnum):
    """The kinds of calls that must not wait for each other."""

    CHECKS = "checks"
    """What agents wait for before they act: checks, announcements, routings."""
    QUERIES = "queries"
    """Searches."""
    OTHERS = "others"
    """All else: recording, imports, listings, nodes, sessions, tasks."""


LANES: Final[Mapping[str, LaneName]] = {
    "cstp.checkGuardrails": LaneName.CHECKS,
    "cstp.announceIntent": LaneName.CHECKS,
    "liaison.routeToLiaisonAgent": LaneName.CHECKS,
    "cstp.queryDecisions": LaneName.QUERIES,
}
"""The lane of each method that is not one of the others, by its JSON-RPC name."""

THREADS: Final[Mapping[LaneName, int]] = {LaneName.CHECKS: 4, LaneName.QUERIES: 2, LaneName.OTHERS: 8}
"""How many threads each lane has. More than two for searches would only compete for the interpreter's lock; the others
mostly wait for the database."""

CLOSE_SECONDS: Final = 2.0
"""How long work that has begun is waited for when a server stops; a database that is silent may hold it for longer."""

SHORT: Final = frozenset({"cstp.getAccess"})
"""Methods whose plain functions only compute for microseconds, so that a thread would cost more than they do."""


class Lane:
    """Bounded threads for the blocking work of one kind of calls."""

    def __init__(self, name: LaneName) -> None:
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
