"""The changes of decisions as server-sent events."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from bridge.event_streams import LAST_EVENT_ID, invalid_parameter, read_query
from bridge.upstream import Metadata

DECISIONS_PATH: Final = "/decisions/events"
LIST_PARAMETERS: Final = frozenset({"stakes", "status", "outcome", "tags"})
"""The query parameters that may be given several times, or with commas between their values."""
NUMBERS: Final = frozenset({"minConfidence", "maxConfidence"})


class DecisionEvents:
    """The changes of decisions that the caller may read; the id of each is its journal revision.

    All query parameters but `after` are those of the filters of a query.
    """

    path = DECISIONS_PATH
    method = "cstp.watchDecisions"

    async def read_params(self, request: web.Request, _: Metadata) -> dict[str, object]:
        """Return the params of the watch. Raises CstpError."""
        filters = read_query(request, LIST_PARAMETERS)
        after = request.headers.get(LAST_EVENT_ID) or filters.pop("after", None)
        filters.pop("after", None)
        for name in NUMBERS & filters.keys():
            filters[name] = parse_number(name, filters[name])
        return {"filters": filters, **({"after": after} if after else {})}

    def first_id(self, _: dict[str, object]) -> None:
        """Return None: the first answer has the revision at which the watch begins."""

    def to_event(self, result: dict[str, Any]) -> tuple[str, object]:
        """Return the revision of a change and the change; None for the answer that only has a revision."""
        is_change = "decision" in result or "deletedId" in result
        return result["journalRevision"], result if is_change else None


def parse_number(name: str, text: str) -> float:
    """Parse a number. Raises CstpError, which names the parameter."""
    try:
        return float(text)
    except ValueError:
        raise invalid_parameter(name, "must be a number") from None
