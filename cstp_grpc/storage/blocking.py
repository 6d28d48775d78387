"""What runs the work of calls, so that an event loop need not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a function on a thread, in the context of the caller."""

    async def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returns. Raises what it raises."""


class WorkLane(Protocol):
    """Runs the work of one kind of calls, so that it holds up no others."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns that may block, as `RunBlocking` does."""

    async def run_short(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns that takes less than a millisecond; it runs on the event loop, in turn."""
