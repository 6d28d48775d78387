"""Server-sent events, with which the bridge streams over HTTP."""

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
"""Interval of pings on an idle stream. Chosen: proxies close connections that are idle for 30 to 60 s, and a failed
ping shows that the reader has gone."""

DISCONNECT_POLL_SECONDS: Final = 0.5
"""Interval of checks for a closed connection. Chosen: aiohttp does not notify a handler that only sends."""

LINE_BREAKS: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"}
"""Escapes characters that end a line neither in JSON nor in the event format, but in clients that use
str.splitlines."""


@dataclass(frozen=True, slots=True)
class EventEncoder:
    """Encode the events and the final error of a stream for one transport."""

    encode_event: Callable[[object], str]
    """Returns the JSON text of an event."""
    encode_error: Callable[[Exception], Awaitable[str]]
    """Returns the JSON text of the error that ends a stream."""
    error_name: str | None = None
    """The name of that last event; None to send it without a name like all others."""


async def stream_events(
    request: web.Request,
    first: object,
    events: AsyncGenerator[object, None],
    encoder: EventEncoder,
    headers: Mapping[str, str],
    ping_seconds: float = PING_SECONDS,
) -> web.StreamResponse:
    """Stream the first event and those of the generator until it ends or the client disconnects.

    The generator is closed at the end; its error becomes the last event. The first event is fetched before, so that an
    error before it can be answered with a plain response.
    """
    async with aclosing(events):
        response = await start_event_stream(request, headers, ping_seconds)
        async with response:
            await run_while_connected(request, response, send_events(response, encode_events(first, events, encoder)))
    return response


async def send_single_event(request: web.Request, text: str, headers: Mapping[str, str]) -> web.StreamResponse:
    """Send a single event."""
    response = await start_event_stream(request, headers, PING_SECONDS)
    async with response:
        await run_while_connected(request, response, send_events(response, single_event(text)))
    return response


async def single_event(text: str) -> AsyncGenerator[tuple[str, str | None], None]:
    """Yield one event without a name."""
    yield text, None


async def start_event_stream(
    request: web.Request, headers: Mapping[str, str], ping_seconds: float
) -> EventSourceResponse:
    """Send the headers of an event stream and return the response."""
    response = EventSourceResponse(headers=headers, allow_all_methods=True, ping_interval=ping_seconds)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    await response.prepare(request)
    return response


async def send_events(response: EventSourceResponse, texts: AsyncIterable[tuple[str, str | None]]) -> None:
    """Send events of JSON text, each with its name if it has one."""
    try:
        async for text, name in texts:
            await response.send(text.translate(LINE_BREAKS), event=name)
    except (ConnectionResetError, TimeoutError):
        logger.info("the reader of a stream left or stopped reading")


async def encode_events(
    first: object, events: AsyncGenerator[object, None], encoder: EventEncoder
) -> AsyncGenerator[tuple[str, str | None], None]:
    """Yield the text and the name of each event."""
    try:
        yield encoder.encode_event(first), None
        async for event in events:
            yield encoder.encode_event(event), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the transport words it for the reader
        yield await encoder.encode_error(error), encoder.error_name


async def run_while_connected(
    request: web.Request, response: EventSourceResponse, work: Coroutine[Any, Any, None]
) -> None:
    """Run the work until it ends or the client disconnects."""
    sending = asyncio.create_task(work)
    # It ends when a ping cannot be sent, which is the only sign of a connection that was lost without being closed.
    reading = asyncio.create_task(response.wait())
    leaving = asyncio.create_task(wait_for_disconnect(request))
    tasks = (sending, reading, leaving)
    # The first of the three to end decides: everything is sent, the reader cannot be reached, or it has disconnected.
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        # Awaited, so that the generator behind `work` is closed, and its call cancelled, before the response ends.
        await asyncio.gather(*tasks, return_exceptions=True)
    if not sending.cancelled():
        sending.result()


async def wait_for_disconnect(request: web.Request) -> None:
    """Return when the connection of a request is closed."""
    while request.transport is not None:
        await asyncio.sleep(DISCONNECT_POLL_SECONDS)
