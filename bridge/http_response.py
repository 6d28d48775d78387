"""HTTP responses: the media type that a caller accepts, challenges, CORS headers, and server-sent events."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp_sse import EventSourceResponse

from bridge.call_errors import retry_seconds
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import CstpError

logger = logging.getLogger(__name__)


def challenge_headers(status: int, failure: CstpError) -> dict[str, str]:
    """Return the headers that tell a refused caller to authenticate or to wait."""
    if status == 401:
        return {hdrs.WWW_AUTHENTICATE: 'Bearer realm="cstp"'}
    # RFC 9110, section 10.2.3, defines Retry-After for 503, and RFC 6585, section 4, for 429.
    if status in (429, 503) and (wait := retry_seconds(failure)):
        return {hdrs.RETRY_AFTER: str(wait)}
    return {}


@dataclass(frozen=True, slots=True)
class AcceptHeader:
    """The media ranges of an `Accept` header in lower case, each with its quality from 0 to 1."""

    ranges: Sequence[tuple[str, float]]

    @classmethod
    def parse(cls, values: Iterable[str]) -> AcceptHeader:
        """Parse the values of the header; a quality that is not a number counts as 1."""
        return cls([parse_media_range(item) for value in values for item in value.split(",")])

    def prefer(self, offered: Sequence[str]) -> str | None:
        """Return the preferred media type among those offered, or None if none is acceptable.

        A type that is named explicitly precedes one that only a range such as `*/*` allows; ties go to the first
        offered.
        """
        best = max(offered, key=self._rate)
        return best if self._rate(best)[0] > 0 else None

    def _rate(self, media_type: str) -> tuple[float, int]:
        """Return the quality of the most specific range that covers a media type, and the rank of that range."""
        # In rising order of precedence (RFC 9110, section 12.5.1): the most specific range decides, even if it has the
        # lower weight.
        covering = ("*/*", f"{media_type.partition('/')[0]}/*", media_type)
        found = [(covering.index(name), quality) for name, quality in self.ranges if name in covering]
        specific, quality = max(found, default=(0, 0.0))
        return quality, specific


def parse_media_range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    given = [parameter.removeprefix("q=") for parameter in parameters if parameter.startswith("q=")]
    try:
        quality = float(given[0]) if given else 1.0
    except ValueError:
        quality = 1.0
    return name, min(max(quality, 0.0), 1.0) if math.isfinite(quality) else 1.0


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Last-Event-ID, X-Request-Id, traceparent, tracestate, A2A-Version, A2A-Extensions, "
    "X-A2A-Extensions"
)
EXPOSED_HEADERS: Final = (
    "A2A-Extensions, ETag, RateLimit-Limit, RateLimit-Policy, RateLimit-Remaining, RateLimit-Reset, Retry-After, "
    "WWW-Authenticate, X-A2A-Extensions, X-Request-Id"
)
MAX_AGE: Final = "600"
"""Seconds for which a browser may cache a preflight response. Chosen: Chromium caps it at two hours; a change of the
settings should take effect sooner."""


class Cors:
    """Answers preflight requests and adds CORS headers for the given origins; `*` is any. Never with credentials."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._any = "*" in self._origins

    def install(self, app: web.Application, paths: Mapping[str, Iterable[str]]) -> None:
        """Add preflight handlers for the paths and their methods, and CORS headers to every response."""
        app.on_response_prepare.append(self._mark)
        for path, methods in paths.items():
            app.router.add_options(path, self._preflight(", ".join(methods)))

    def _preflight(self, methods: str) -> Handler:
        async def answer(_: web.Request) -> web.Response:
            headers = {
                "Access-Control-Allow-Methods": methods,
                "Access-Control-Allow-Headers": ALLOWED_HEADERS,
                "Access-Control-Max-Age": MAX_AGE,
            }
            return web.Response(status=204, headers=headers)

        return answer

    async def _mark(self, request: web.Request, response: web.StreamResponse) -> None:
        # The answer then depends on the Origin header, also for requests without one: a shared cache must not mix them
        # up.
        if not self._any:
            response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is not None and (self._any or origin in self._origins):
            response.headers["Access-Control-Allow-Origin"] = "*" if self._any else origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS


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
    """Encodes the events and the final error of a stream for one transport."""

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
    response = await start_event_stream(request, headers, PING_SECONDS)
    async with response:
        await run_while_connected(request, response, send_events(response, single_event(text)))
    return response


async def single_event(text: str) -> AsyncGenerator[tuple[str, str | None], None]:
    yield text, None


async def start_event_stream(
    request: web.Request, headers: Mapping[str, str], ping_seconds: float
) -> EventSourceResponse:
    response = EventSourceResponse(headers=headers, allow_all_methods=True, ping_interval=ping_seconds)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    await response.prepare(request)
    return response


async def send_events(response: EventSourceResponse, texts: AsyncIterable[tuple[str, str | None]]) -> None:
    try:
        async for text, name in texts:
            await response.send(text.translate(LINE_BREAKS), event=name)
    except (ConnectionResetError, TimeoutError):
        logger.info("the reader of a stream left or stopped reading")


async def encode_events(
    first: object, events: AsyncGenerator[object, None], encoder: EventEncoder
) -> AsyncGenerator[tuple[str, str | None], None]:
    try:
        yield encoder.encode_event(first), None
        async for event in events:
            yield encoder.encode_event(event), None
    except Exception as error:  # noqa: BLE001 - the transport turns any error into an event
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
    while request.transport is not None:
        await asyncio.sleep(DISCONNECT_POLL_SECONDS)
