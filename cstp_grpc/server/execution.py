"""Where calls run: the event loop thread, and one thread pool for each kind of call.

Waiting holds no thread. Work that may block or take long (searches, models, files, a database server) runs on the
threads of a pool, so that calls of one kind cannot use up the threads of others.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import StrEnum
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class EventLoopThread:
    """An event loop in a thread, so that code that starts and stops a server need not be async.

    It is one of uvloop unless a loop is given.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        # A daemon, so that a start that fails halfway does not keep the process alive; `stop` joins it.
        self._loop = loop or new_fast_event_loop()
        self._loop.set_exception_handler(log_uncaught_exception)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine on the loop and return its result; from other threads. Raises the coroutine's exceptions."""
        return self.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop soon; from other threads. Raises RuntimeError after `stop`."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel the remaining tasks, and end the thread."""
        if self._thread.is_alive():
            self.run(cancel_other_tasks())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def new_fast_event_loop() -> asyncio.AbstractEventLoop:
    # Not loaded before it is needed: a process that is no server does not need it.
    import uvloop

    return uvloop.new_event_loop()


async def cancel_other_tasks() -> None:
    """Cancel all other tasks of the running loop, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def log_uncaught_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log exceptions that no task caught, except gRPC's BlockingIOError.

    gRPC's events wake all loops of a process, and the first one takes them; the others find nothing to read, which is
    not an error.
    """
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


class PoolName(StrEnum):
    """The kinds of calls, each with its own pool so that they do not wait for each other."""

    CHECKS = "checks"
    """Checks and announcements, for which agents wait before they act."""
    QUERIES = "queries"
    """Searches."""
    ROUTINGS = "routings"
    """Routing of chat sessions, which may wait for a remote agent to confirm."""
    OTHERS = "others"
    """Everything else: recording, imports, listings, nodes, sessions, tasks."""


POOL_OF_METHOD: Final[Mapping[str, PoolName]] = {
    "cstp.checkGuardrails": PoolName.CHECKS,
    "cstp.announceIntent": PoolName.CHECKS,
    "liaison.routeToLiaisonAgent": PoolName.ROUTINGS,
    "cstp.queryDecisions": PoolName.QUERIES,
    "cstp.explainSearch": PoolName.QUERIES,
}
"""The pool of each method by its JSON-RPC name; all others use OTHERS."""

POOL_THREADS: Final[Mapping[PoolName, int]] = {
    PoolName.CHECKS: 4,
    PoolName.QUERIES: 2,
    PoolName.ROUTINGS: 8,
    PoolName.OTHERS: 8,
}
"""Threads of each pool. Chosen: searches compute, and more than two would only compete for the interpreter's lock; the
others mostly wait for the database or for remote agents.
"""

REMOTE_EMBEDDER_THREADS: Final[Mapping[PoolName, int]] = {**POOL_THREADS, PoolName.CHECKS: 16, PoolName.QUERIES: 16}
"""Threads of each pool if texts are embedded by an endpoint. Chosen: a search then waits for the network, some ten to
some hundred milliseconds, and two threads would answer ten queries a second.
"""

CLOSE_SECONDS: Final = 2.0
"""Maximum seconds to wait for running work when a server stops. Chosen: most calls end in milliseconds, and one that
waits for a silent database must not keep the process from ending."""

SHORT_METHODS: Final = frozenset({"cstp.getAccess"})
"""Methods whose functions take only microseconds, less than a switch to a thread."""


PASSES_BETWEEN_TURNS: Final = 6
"""Passes of the event loop between two turns.

grpc.aio accepts one call after another, each in about three passes. With fewer passes between turns, searches would
wait before they are accepted instead of for their turn, and a check would wait among them.
"""


class LoopTurns:
    """Turns on the event loop, first come, first served.

    Other ready tasks run between two turns, so that many short functions do not add up to a long block.
    """

    def __init__(self) -> None:
        # No lock: all of this runs on one event loop, between two awaits.
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn, which lasts until the caller awaits something."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken = True
            loop.call_soon(self._pass_on, loop, PASSES_BETWEEN_TURNS)

    def _pass_on(self, loop: asyncio.AbstractEventLoop, passes: int) -> None:
        """Give the turn to the first waiter, after some more passes."""
        if passes:
            loop.call_soon(self._pass_on, loop, passes - 1)
            return
        while self._waiting:
            turn = self._waiting.popleft()
            # The future is done if its caller was cancelled while it waited.
            if not turn.done():
                turn.set_result(None)
                loop.call_soon(self._pass_on, loop, PASSES_BETWEEN_TURNS)
                return
        self._taken = False


class CallPool:
    """A bounded thread pool for the blocking work of one kind of calls, and turns on the event loop for short work."""

    def __init__(self, name: PoolName, threads: int) -> None:
        self._turns = LoopTurns()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._begun: set[Future[Any]] = set()

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on a thread in the caller's context and return its result. Raises the function's exceptions.

        A running function continues if the caller is cancelled.
        """
        # The thread sees the caller's context variables, above all the current caller, which authentication has set.
        context = contextvars.copy_context()
        future = self._pool.submit(lambda: context.run(function, *args, **kwargs))
        # Kept for `close`, since ThreadPoolExecutor cannot wait for running work with a time limit. The set is changed
        # by the loop and by worker threads; `add` and `discard` are atomic.
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        try:
            return await asyncio.wrap_future(future)
        finally:
            # The future holds an exception whose traceback holds this frame: a cycle that would keep the arguments.
            del future

    async def take_turn(self) -> None:
        """Wait for a turn on the event loop, which lasts until the caller awaits something."""
        await self._turns.take()

    async def run_short(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that takes less than a millisecond on the event loop, in turn, and return its result.

        Raises the function's exceptions.
        """
        await self._turns.take()
        return function(*args, **kwargs)

    def close(self) -> None:
        """Accept no more work, and wait briefly for running work: it may hold a database connection."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        # A copy, since workers remove finished work.
        wait(set(self._begun), CLOSE_SECONDS)


class CallPools:
    """All call pools of a server."""

    def __init__(self, threads: Mapping[PoolName, int] = POOL_THREADS) -> None:
        self._pools = {name: CallPool(name, threads[name]) for name in PoolName}

    def __getitem__(self, name: PoolName) -> CallPool:
        return self._pools[name]

    def for_method(self, name: str) -> CallPool:
        """Return the pool of a method by its JSON-RPC name."""
        return self._pools[POOL_OF_METHOD.get(name, PoolName.OTHERS)]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
