"""The events of liaison routing as server-sent events, for browsers and others that cannot speak gRPC."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from weakref import WeakSet

from aiohttp import hdrs, web
from aiohttp_sse import EventSourceResponse

from bridge import headers, sse
from bridge.a2a.errors import Refused, rest_error
from bridge.a2a.gate import Gate
from bridge.methods import Forwarder, Metadata
from bridge.status import Failure, violations

logger = logging.getLogger(__name__)

PATH: Final = "/liaison/events"
WATCH: Final = "liaison.watchEvents"
LIST: Final = "liaison.listEvents"
LAST_EVENT_ID: Final = "Last-Event-ID"
LISTS: Final = frozenset({"types"})
"""The query parameters that may be given several times, or with commas between their values."""


class LiaisonEvents:
    """Streams the events of the caller's tenant. The identifier of each is its sequence."""

    def __init__(self, forwarder: Forwarder, gate: Gate) -> None:
        self._forwarder = forwarder
        self._gate = gate
        self._open: WeakSet[EventSourceResponse] = WeakSet()

    def install(self, app: web.Application) -> None:
        """Add the path to an application, at whose shutdown the streams end."""
        app.router.add_get(PATH, self.stream, allow_head=False)
        app.on_shutdown.append(self._close)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer with events until the reader leaves, the server stops or the bridge does."""
        request_id = headers.request_id_of(request)
        metadata = headers.metadata_of(request, request_id)
        try:
            params = await self._read_params(request, metadata)
            events = await self._forwarder.open_stream(WATCH, params, metadata)
        except Failure as failure:
            error = await self._gate.judge_failure(failure, metadata)
            return refuse(error, request_id)
        async with aclosing(events):
            marks = {headers.REQUEST_ID_HEADER: request_id}
            response = await sse.begin(request, marks, sse.PING_SECONDS)
            self._open.add(response)
            async with response:
                await sse.until_gone(request, response, send_events(response, params["after"], events))
        return response

    async def _read_params(self, request: web.Request, metadata: Metadata) -> dict[str, object]:
        """Return the params of the watch, always with where it begins. Raises Failure."""
        params: dict[str, object] = {}
        for name in request.query:
            values = request.query.getall(name)
            if name in LISTS:
                params[name] = [value for text in values for value in text.split(",")]
            elif len(values) > 1:
                raise invalid_parameter(name, "must not be given more than once")
            else:
                params[name] = read_sequence(name, values[0]) if name == "after" else values[0]
        if seen := request.headers.get(LAST_EVENT_ID):
            # A browser that connects again sends it, and repeats the address that it began with.
            params["after"] = read_sequence(LAST_EVENT_ID, seen)
        if "after" not in params:
            listed = await self._forwarder.call(LIST, {"page_size": 1}, metadata)
            params["after"] = listed["newest"]
        return params

    async def _close(self, _: web.Application) -> None:
        for response in self._open:
            response.stop_streaming()


async def send_events(
    response: EventSourceResponse, start: object, events: AsyncGenerator[dict[str, Any], None]
) -> None:
    """Send events as they come, until they end.

    A reader that is cut off before the first one goes on from `start` when it connects again.
    """
    try:
        await response.write(f"id: {start}\r\n\r\n".encode())
        async for result in events:
            event = result["event"]
            text = json.dumps(event, ensure_ascii=False).translate(sse.LINE_BREAKS)
            await response.send(text, id=str(event["sequence"]))
    except (ConnectionResetError, TimeoutError):
        logger.info("the reader of a stream of events left or stopped reading")
    except Failure as failure:
        # The stream just ends: whoever connects again is told the reason then, with its HTTP status.
        logger.info("a stream of events ended: %s", failure.message)


def read_sequence(name: str, text: str) -> int:
    """Return the sequence of an event. Raises Failure, which names the parameter or header."""
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise invalid_parameter(name, "must be the sequence of an event")
    return int(text)


def invalid_parameter(name: str, description: str) -> Failure:
    """Return the failure of a query parameter or header that cannot be used."""
    details = {"violations": violations([(name, description)])}
    return Failure("INVALID_ARGUMENT", f"{name}: {description}", details=details)


def refuse(failure: Failure, request_id: str) -> web.Response:
    """Return the answer to a request that is refused: as HTTP+JSON has it, a google.rpc.Status."""
    status, body = rest_error(Refused(failure), request_id)
    marks = {headers.REQUEST_ID_HEADER: request_id, hdrs.CACHE_CONTROL: "no-store"}
    return web.json_response(body, status=status, headers={**marks, **headers.challenges(status, failure)})
