"""The event loop that calls wait on, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EventLoopThread:
    """A uvloop event loop in a thread, so that whoever starts and stops a server need not be asynchronous."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(report_exception)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, run on the loop; for other threads. Raises what it raises."""
        return self.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine on the loop; for other threads."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop soon; for other threads. Raises RuntimeError after the end."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel the tasks that are left, and end."""
        if self._thread.is_alive():
            self.run(cancel_other_tasks())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def cancel_other_tasks() -> None:
    """Cancel all tasks of the running loop but this one, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def report_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what no task caught.

    All loops of a process hear of gRPC's events, and the first to look takes them; the others find nothing, which is
    no error.
    """
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
