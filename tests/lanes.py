"""Where the work of calls is done in tests without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ObservedLane:
    """Runs what may block on a thread and what is short at once, and remembers the names of both."""

    def __init__(self) -> None:
        self.blocking: list[str] = []
        self.short: list[str] = []

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.blocking.append(function.__name__)
        return await asyncio.to_thread(function, *args, **kwargs)

    async def run_short(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.short.append(function.__name__)
        return function(*args, **kwargs)
