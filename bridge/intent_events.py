"""Announced intents as server-sent events."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from bridge.event_streams import LAST_EVENT_ID, read_query
from bridge.upstream import Metadata

INTENTS_PATH: Final = "/intents/events"
LIST_PARAMETERS: Final = frozenset({"stakes"})
"""The query parameters that may be given several times, or with commas between their values."""


class IntentEvents:
    """The intents that the caller may read as they are announced; the id of each is its resume token."""

    path = INTENTS_PATH
    method = "cstp.watchIntents"

    async def read_params(self, request: web.Request, _: Metadata) -> dict[str, object]:
        """Return the params of the watch. Raises CstpError."""
        params: dict[str, object] = read_query(request, LIST_PARAMETERS)
        if seen := request.headers.get(LAST_EVENT_ID):
            params["after"] = seen
        return params

    def first_id(self, _: dict[str, object]) -> None:
        """Return None: the first answer has the token with which the watch begins."""

    def to_event(self, result: dict[str, Any]) -> tuple[str, object]:
        """Return the token of an answer and its intent; None for the answer that only has a token."""
        return result["resumeToken"], result.get("intent")
