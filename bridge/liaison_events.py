"""The events of liaison routing as server-sent events, for browsers and other clients without gRPC."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from weakref import WeakSet

from aiohttp import hdrs, web
from aiohttp_sse import EventSourceResponse

from bridge import http_request, http_response, sse
from bridge.admission import AccessCheck
from bridge.call_errors import failure_status
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.errors import CstpError, InvalidArgument

logger = logging.getLogger(__name__)

EVENTS_PATH: Final = "/liaison/events"
WATCH_METHOD: Final = "liaison.watchEvents"
LIST_METHOD: Final = "liaison.listEvents"
LAST_EVENT_ID: Final = "Last-Event-ID"
LIST_PARAMETERS: Final = frozenset({"types"})
"""The query parameters that may be given several times, or with commas between their values."""


class LiaisonEventEndpoint:
    """Stream the events of the caller's tenant. The id of each is its sequence number."""

    def __init__(self, forwarder: Forwarder, gate: AccessCheck) -> None:
        self._forwarder = forwarder
        self._gate = gate
        self._open: WeakSet[EventSourceResponse] = WeakSet()

    def install(self, app: web.Application) -> None:
        """Add the route to an application, at whose shutdown the streams end."""
        app.router.add_get(EVENTS_PATH, self.stream, allow_head=False)
        app.on_shutdown.append(self._close)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Stream events until the client disconnects, or the server or the bridge stops."""
        request_id = http_request.read_request_id(request)
        metadata = http_request.request_metadata(request, request_id)
        try:
            params = await self._read_params(request, metadata)
            events = await self._forwarder.open_stream(WATCH_METHOD, params, metadata)
        except CstpError as failure:
            error = await self._gate.visible_failure(failure, metadata)
            return failure_response(error, request_id)
        # Outermost, so that the call of the server is cancelled however the response ends.
        async with aclosing(events):
            headers = {http_request.REQUEST_ID_HEADER: request_id}
            response = await sse.start_event_stream(request, headers, sse.PING_SECONDS)
            # Without it, an open stream would hold up the shutdown of the application until its drain time is over.
            self._open.add(response)
            async with response:
                await sse.run_while_connected(request, response, send_events(response, params["after"], events))
        return response

    async def _read_params(self, request: web.Request, metadata: Metadata) -> dict[str, object]:
        """Return the params of the subscription, always with the start sequence. Raises CstpError."""
        params: dict[str, object] = {}
        for name in request.query:
            values = request.query.getall(name)
            if name in LIST_PARAMETERS:
                params[name] = [value for text in values for value in text.split(",")]
            elif len(values) > 1:
                raise invalid_parameter(name, "must not be given more than once")
            else:
                params[name] = parse_sequence(name, values[0]) if name == "after" else values[0]
        if seen := request.headers.get(LAST_EVENT_ID):
            # A browser that reconnects sends this header with the original URL, whose `after` is older.
            params["after"] = parse_sequence(LAST_EVENT_ID, seen)
        if "after" not in params:
            # The present end of the log, so that a client which is cut off before its first event has a place to resume
            # from.
            listed = await self._forwarder.call(LIST_METHOD, {"page_size": 1}, metadata)
            params["after"] = listed["newest"]
        return params

    async def _close(self, _: web.Application) -> None:
        for response in self._open:
            response.stop_streaming()


async def send_events(
    response: EventSourceResponse, start: object, events: AsyncGenerator[dict[str, Any], None]
) -> None:
    """Send events as they arrive, until the stream ends.

    A client that is disconnected before the first event resumes from `start` when it reconnects.
    """
    try:
        # An event with an id and no data is not dispatched, but sets the client's last event id (HTML, server-sent
        # events).
        await response.write(f"id: {start}\r\n\r\n".encode())
        async for result in events:
            event = result["event"]
            text = json.dumps(event, ensure_ascii=False).translate(sse.LINE_BREAKS)
            await response.send(text, id=str(event["sequence"]))
    except (ConnectionResetError, TimeoutError):
        logger.info("the reader of a stream of events left or stopped reading")
    except CstpError as failure:
        # The stream ends without an error event: the client reconnects, and gets the error with its HTTP status.
        logger.info("a stream of events ended: %s", failure.message)


def parse_sequence(name: str, text: str) -> int:
    """Parse the sequence number of an event. Raises CstpError, which names the parameter or header."""
    # `isdecimal` alone accepts the digits of every script. Ten digits hold every sequence of the contract.
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise invalid_parameter(name, "must be the sequence of an event")
    return int(text)


def invalid_parameter(name: str, description: str) -> CstpError:
    """Return the failure of an invalid query parameter or header."""
    return InvalidArgument.field(name, description)


def failure_response(failure: CstpError, request_id: str) -> web.Response:
    """Return the error response as HTTP+JSON defines it: a google.rpc.Status."""
    status, body = failure_status(failure, request_id)
    headers = {http_request.REQUEST_ID_HEADER: request_id, hdrs.CACHE_CONTROL: "no-store"}
    return web.json_response(
        body, status=status, headers={**headers, **http_response.challenge_headers(status, failure)}
    )
