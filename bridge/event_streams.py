"""Changes of decisions, intents, approvals and sessions as server-sent events, for browsers and others without gRPC."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import reduce
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from aiohttp import hdrs, web
from aiohttp_sse import EventSourceResponse

from bridge import http_request, http_response
from bridge.call_errors import failure_status
from bridge.call_observation import METHOD, attach_failures, describe_failure
from bridge.http_request import AccessCheck
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import CstpError, FieldViolation, InvalidArgument

logger = logging.getLogger(__name__)

LAST_EVENT_ID = "Last-Event-ID"
FILTERS_PREFIXES: Final = ("filters.", "conditions.")
Params: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class StreamedMethod:
    """A server-streaming method whose answers are events."""

    path: str
    method: str
    read_params: Callable[[web.Request, Forwarder, Metadata], Awaitable[Params]]
    """Returns the params of a call. Raises CstpError."""
    to_event: Callable[[dict[str, Any]], tuple[str, object]]
    """Returns the id of an answer and its event, None for an id alone."""
    sends_first_id: bool = False
    """Whether `after` in the params is sent as the first id, from which a client resumes that is disconnected before
    the first event. Other methods have it in their first answer."""


class EventStreamEndpoint:
    """Streams the answers of a method as server-sent events."""

    def __init__(self, streamed: StreamedMethod, forwarder: Forwarder, access: AccessCheck) -> None:
        self._streamed = streamed
        self._forwarder = forwarder
        self._access = access
        self._open: WeakSet[EventSourceResponse] = WeakSet()

    def install(self, app: web.Application) -> None:
        """Add the route to an application, at whose shutdown the streams end."""
        self._forwarder.event_paths[self._streamed.method] = self._streamed.path
        app.router.add_get(self._streamed.path, self.stream, allow_head=False)
        app.on_shutdown.append(self._close)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Stream events until the client disconnects, or the server or the bridge stops."""
        request[METHOD] = self._streamed.method
        request_id = http_request.read_request_id(request)
        metadata = http_request.request_metadata(request, request_id)
        try:
            params = await self._streamed.read_params(request, self._forwarder, metadata)
            results = await self._forwarder.open_stream(self._streamed.method, params, metadata)
        except CstpError as failure:
            error = await self._access.visible_failure(failure, metadata)
            return failure_response(name_parameters(error), request_id)
        # Outermost, so that the call of the server is cancelled however the response ends.
        async with aclosing(results):
            headers = {http_request.REQUEST_ID_HEADER: request_id}
            response = await http_response.start_event_stream(request, headers, http_response.PING_SECONDS)
            # Without it, an open stream would hold up the shutdown of the application until its drain time is over.
            self._open.add(response)
            async with response:
                sending = self._send(response, params, results)
                await http_response.run_while_connected(request, response, sending)
        return response

    async def _send(
        self, response: EventSourceResponse, params: Params, results: AsyncGenerator[dict[str, Any], None]
    ) -> None:
        try:
            if self._streamed.sends_first_id:
                await send_id(response, str(params["after"]))
            async for result in results:
                event_id, event = self._streamed.to_event(result)
                if event is None:
                    await send_id(response, event_id)
                else:
                    text = json.dumps(event, ensure_ascii=False).translate(http_response.LINE_BREAKS)
                    await response.send(text, id=event_id)
        except (ConnectionResetError, TimeoutError):
            logger.info("the reader of a stream of events left or stopped reading")
        except CstpError as failure:
            # The stream ends without an error event: the client reconnects, and gets the error with its HTTP status.
            logger.info("a stream of events ended: %s", failure.message)

    async def _close(self, _: web.Application) -> None:
        for response in self._open:
            response.stop_streaming()


async def send_id(response: EventSourceResponse, event_id: str) -> None:
    # An event with an id and no data is not dispatched, but sets the client's last event id (HTML, server-sent events).
    await response.write(f"id: {event_id}\r\n\r\n".encode())


def read_query(request: web.Request, lists: frozenset[str]) -> dict[str, Any]:
    """Return the query parameters; those of `lists` may be repeated, or have commas between their values.

    Raises CstpError for another one that is repeated.
    """
    values: dict[str, Any] = {}
    for name in request.query:
        given = request.query.getall(name)
        if name in lists:
            values[name] = [value for text in given for value in text.split(",")]
        elif len(given) > 1:
            raise InvalidArgument.field(name, "must not be given more than once")
        else:
            values[name] = given[0]
    return values


def name_parameters(failure: CstpError) -> CstpError:
    """Return a failure that names invalid filters as the query does, where they are parameters of their own."""
    if not any(each.field.startswith(FILTERS_PREFIXES) for each in failure.violations):
        return failure
    violations = [
        FieldViolation(reduce(str.removeprefix, FILTERS_PREFIXES, each.field), each.description)
        for each in failure.violations
    ]
    summary = "; ".join(f"{each.field}: {each.description}" for each in violations)
    return InvalidArgument(summary, metadata=failure.metadata, violations=violations)


def failure_response(failure: CstpError, request_id: str) -> web.Response:
    """Return the error response as HTTP+JSON defines it: a google.rpc.Status."""
    status, body = failure_status(failure, request_id)
    headers = {http_request.REQUEST_ID_HEADER: request_id, hdrs.CACHE_CONTROL: "no-store"}
    response = web.json_response(
        body, status=status, headers={**headers, **http_response.challenge_headers(status, failure)}
    )
    attach_failures(response, describe_failure(failure))
    return response


DECISIONS_PATH: Final = "/decisions/events"
INTENTS_PATH: Final = "/intents/events"
APPROVALS_PATH: Final = "/approvals/events"
AUDIT_PATH: Final = "/audit/events"
LIAISON_EVENTS_PATH: Final = "/liaison/events"
LIST_EVENTS_METHOD: Final = "liaison.listEvents"
LISTS_OF_DECISION_FILTERS: Final = frozenset({"stakes", "status", "outcome", "tags"})
"""The query parameters that may be given several times, or with commas between their values."""
NUMERIC_FILTERS: Final = frozenset({"minConfidence", "maxConfidence"})


async def read_decision_filters(request: web.Request, _: Forwarder, __: Metadata) -> Params:
    """Return the params of a watch of decisions: all query parameters but `after` are filters. Raises CstpError."""
    filters = read_query(request, LISTS_OF_DECISION_FILTERS)
    after = request.headers.get(LAST_EVENT_ID) or filters.pop("after", None)
    filters.pop("after", None)
    for name in NUMERIC_FILTERS & filters.keys():
        filters[name] = parse_number(name, filters[name])
    return {"filters": filters, **({"after": after} if after else {})}


def decision_event(result: dict[str, Any]) -> tuple[str, object]:
    is_change = "decision" in result or "deletedId" in result
    return result["journalRevision"], result if is_change else None


def parse_number(name: str, text: str) -> float:
    """Parse a number. Raises CstpError, which names the parameter."""
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument.field(name, "must be a number") from None


def resumable_events(path: str, method: str, lists: frozenset[str], member: str) -> StreamedMethod:
    """Return a method whose answers have a resume token, which is the id of each event, and the event as a member.

    `lists` are the query parameters that may be given several times, or with commas between their values.
    """

    async def read_params(request: web.Request, _: Forwarder, __: Metadata) -> Params:
        params: Params = read_query(request, lists)
        if seen := request.headers.get(LAST_EVENT_ID):
            params["after"] = seen
        return params

    return StreamedMethod(path, method, read_params, lambda result: (result["resumeToken"], result.get(member)))


async def read_audit_conditions(request: web.Request, _: Forwarder, __: Metadata) -> Params:
    """Return the params of a watch of the audit trail: all query parameters but `after` are conditions.

    Raises CstpError.
    """
    conditions = read_query(request, frozenset({"words", "stakes"}))
    after = request.headers.get(LAST_EVENT_ID) or conditions.pop("after", None)
    conditions.pop("after", None)
    if "allowed" in conditions:
        if conditions["allowed"] not in ("true", "false"):
            raise InvalidArgument.field("allowed", "must be true or false")
        conditions["allowed"] = conditions["allowed"] == "true"
    return {"conditions": conditions, **({"after": after} if after else {})}


async def read_liaison_params(request: web.Request, forwarder: Forwarder, metadata: Metadata) -> Params:
    """Return the params of a subscription to liaison events, always with the start sequence. Raises CstpError."""
    params: Params = read_query(request, frozenset({"types"}))
    if "after" in params:
        params["after"] = parse_sequence("after", str(params["after"]))
    if seen := request.headers.get(LAST_EVENT_ID):
        # A browser that reconnects sends this header with the original URL, whose `after` is older.
        params["after"] = parse_sequence(LAST_EVENT_ID, seen)
    if "after" not in params:
        # The present end of the log, so that a client which is cut off before its first event has a place to resume
        # from.
        listed = await forwarder.call(LIST_EVENTS_METHOD, {"page_size": 1}, metadata)
        params["after"] = listed["newest"]
    return params


def parse_sequence(name: str, text: str) -> int:
    """Parse the sequence number of an event. Raises CstpError, which names the parameter or header."""
    # `isdecimal` alone accepts the digits of every script. Ten digits hold every sequence of the contract.
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise InvalidArgument.field(name, "must be the sequence of an event")
    return int(text)


DECISION_EVENTS: Final = StreamedMethod(DECISIONS_PATH, "cstp.watchDecisions", read_decision_filters, decision_event)
INTENT_EVENTS: Final = resumable_events(INTENTS_PATH, "cstp.watchIntents", frozenset({"stakes"}), "intent")
APPROVAL_EVENTS: Final = resumable_events(APPROVALS_PATH, "cstp.watchApprovals", frozenset({"status"}), "approval")
AUDIT_EVENTS: Final = StreamedMethod(
    AUDIT_PATH, "cstp.watchAudit", read_audit_conditions, lambda result: (result["resumeToken"], result.get("entry"))
)
LIAISON_EVENTS: Final = StreamedMethod(
    LIAISON_EVENTS_PATH,
    "liaison.watchEvents",
    read_liaison_params,
    lambda result: (str(result["event"]["sequence"]), result["event"]),
    sends_first_id=True,
)
EVENT_STREAMS: Final = (DECISION_EVENTS, INTENT_EVENTS, APPROVAL_EVENTS, AUDIT_EVENTS, LIAISON_EVENTS)
