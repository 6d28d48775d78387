"""Server-sent events: how the bridge streams over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp_sse import EventSourceResponse

logger = logging.getLogger(__name__)

PING_SECONDS: Final = 10.0
"""How often a stream that has nothing to say shows that it is alive, and learns whether its reader still is."""

DEPARTURE_SECONDS: Final = 0.5
"""How often a stream looks whether its connection is closed, which nothing tells it that only sends."""

LINE_BREAKS: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"}
"""What ends a line neither in JSON nor in an event, but for clients that split events as Python splits text."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How a transport writes what it streams."""

    event: Callable[[object], str]
    """Returns the JSON text of an event."""
    error: Callable[[Exception], Awaitable[str]]
    """Returns the JSON text of the error that ends a stream."""
    error_name: str | None = None
    """By which name that last event is sent; None for that of all events."""


async def respond(
    request: web.Request,
    first: object,
    events: AsyncGenerator[object, None],
    wording: Wording,
    headers: Mapping[str, str],
    ping_seconds: float = PING_SECONDS,
) -> web.StreamResponse:
    """Answer with the first event and what the generator yields, until it ends or the reader leaves; it is closed then.

    An error of the generator becomes the last event. The first event is fetched before, so that an error before it can
    be answered plainly.
    """
    async with aclosing(events):
        response = await begin(request, headers, ping_seconds)
        async with response:
            await until_gone(request, response, send(response, written(first, events, wording)))
    return response


async def respond_once(request: web.Request, text: str, headers: Mapping[str, str]) -> web.StreamResponse:
    """Answer with a single event."""
    response = await begin(request, headers, PING_SECONDS)
    async with response:
        await until_gone(request, response, send(response, alone(text)))
    return response


async def alone(text: str) -> AsyncGenerator[tuple[str, str | None], None]:
    """Yield one event without a name."""
    yield text, None


async def begin(request: web.Request, headers: Mapping[str, str], ping_seconds: float) -> EventSourceResponse:
    """Return a response whose headers are sent."""
    response = EventSourceResponse(headers=headers, allow_all_methods=True, ping_interval=ping_seconds)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    await response.prepare(request)
    return response


async def send(response: EventSourceResponse, texts: AsyncIterable[tuple[str, str | None]]) -> None:
    """Send events of JSON text, each with its name if it has one."""
    try:
        async for text, name in texts:
            await response.send(text.translate(LINE_BREAKS), event=name)
    except (ConnectionResetError, TimeoutError):
        logger.info("the reader of a stream left or stopped reading")


async def written(
    first: object, events: AsyncGenerator[object, None], wording: Wording
) -> AsyncGenerator[tuple[str, str | None], None]:
    """Yield the text and the name of each event."""
    try:
        yield wording.event(first), None
        async for event in events:
            yield wording.event(event), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the transport words it for the reader
        yield await wording.error(error), wording.error_name


async def until_gone(request: web.Request, response: EventSourceResponse, work: Coroutine[Any, Any, None]) -> None:
    """Wait for the work, but no longer than the reader stays."""
    sending = asyncio.create_task(work)
    # It ends when a ping cannot be sent: a connection that was lost without being closed shows no other way.
    reading = asyncio.create_task(response.wait())
    leaving = asyncio.create_task(wait_for_departure(request))
    tasks = (sending, reading, leaving)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not sending.cancelled():
        sending.result()


async def wait_for_departure(request: web.Request) -> None:
    """Return when the connection of a request is closed."""
    while request.transport is not None:
        await asyncio.sleep(DEPARTURE_SECONDS)
