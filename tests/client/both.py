"""One way to call a server by either client, so that what both do is proved once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from cstp_grpc.client import AsyncCstpClient, CstpClient
from cstp_grpc.client.grpc_transport import ResponseStream


class Time:
    """A clock that only pauses move, and the pauses."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def sleep_in_loop(self, seconds: float) -> None:
        self.sleep(seconds)


class Awaited:
    """A plain client with the methods of one in an event loop."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        return self._awaited(found) if callable(found) else Awaited(found)

    def _awaited(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            return (
                each(result)
                if isinstance(result, Iterator) and not isinstance(result, ResponseStream)
                else gone(result)
            )

        return called


async def each(items: Iterator[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def gone(result: Any) -> Any:
    return result


Use = Callable[[Any], Awaitable[None]]


def with_threads(target: str, use: Use, time: Time, **options: Any) -> None:
    """Use a plain client."""
    with CstpClient(target, sleep=time.sleep, clock=lambda: time.now, random=lambda: 1.0, **options) as client:
        asyncio.run(settled(use(Awaited(client))))


def in_loop(target: str, use: Use, time: Time, **options: Any) -> None:
    """Use a client in an event loop."""

    async def run() -> None:
        pace: dict[str, Any] = {"sleep": time.sleep_in_loop, "clock": lambda: time.now, "random": lambda: 1.0}
        async with AsyncCstpClient(target, **pace, **options) as client:
            await use(client)

    asyncio.run(run())


async def settled(use: Awaitable[None]) -> None:
    await use


BOTH = [with_threads, in_loop]
