"""The events of liaison routing as server-sent events."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from bridge.event_streams import LAST_EVENT_ID, invalid_parameter, read_query
from bridge.upstream import Forwarder, Metadata

EVENTS_PATH: Final = "/liaison/events"
LIST_METHOD: Final = "liaison.listEvents"
LIST_PARAMETERS: Final = frozenset({"types"})
"""The query parameters that may be given several times, or with commas between their values."""


class LiaisonEvents:
    """The events of the caller's tenant; the id of each is its sequence number."""

    path = EVENTS_PATH
    method = "liaison.watchEvents"

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def read_params(self, request: web.Request, metadata: Metadata) -> dict[str, object]:
        """Return the params of the subscription, always with the start sequence. Raises CstpError."""
        params = read_query(request, LIST_PARAMETERS)
        if "after" in params:
            params["after"] = parse_sequence("after", params["after"])
        if seen := request.headers.get(LAST_EVENT_ID):
            # A browser that reconnects sends this header with the original URL, whose `after` is older.
            params["after"] = parse_sequence(LAST_EVENT_ID, seen)
        if "after" not in params:
            # The present end of the log, so that a client which is cut off before its first event has a place to resume
            # from.
            listed = await self._forwarder.call(LIST_METHOD, {"page_size": 1}, metadata)
            params["after"] = listed["newest"]
        return params

    def first_id(self, params: dict[str, object]) -> str:
        """Return the sequence behind which the stream begins."""
        return str(params["after"])

    def to_event(self, result: dict[str, Any]) -> tuple[str, object]:
        """Return the sequence of an event and the event."""
        event = result["event"]
        return str(event["sequence"]), event


def parse_sequence(name: str, text: str) -> int:
    """Parse the sequence number of an event. Raises CstpError, which names the parameter or header."""
    # `isdecimal` alone accepts the digits of every script. Ten digits hold every sequence of the contract.
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise invalid_parameter(name, "must be the sequence of an event")
    return int(text)
