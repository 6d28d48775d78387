"""A2A 1.0 over HTTP+JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from a2a.utils.errors import MethodNotFoundError, UnsupportedOperationError
from aiohttp import hdrs, web

from bridge import headers, jsonrpc, sse
from bridge.a2a import params
from bridge.a2a.cards import A2A_PATH, MAX_AGE, REST_PATH
from bridge.a2a.context import EXTENSIONS, V1_0, VERSION, CallContext, require_version
from bridge.a2a.errors import Refused, invalid_params, rest_error
from bridge.a2a.exchange import Exchange, unreadable
from bridge.a2a.operations import operations
from bridge.a2a.peer import Peer
from bridge.accept import Accept
from bridge.status import Failure

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

A2A_JSON: Final = "application/a2a+json"
ACCEPTED: Final = (A2A_JSON, headers.JSON)
"""The media types of requests and of answers, the usual one first."""
EVENT_STREAM: Final = "text/event-stream"
FLAGS: Final = {"includeArtifacts"}
"""Parameters of a URL that are true or false."""
BOOLEANS: Final[Mapping[str, object]] = {"true": True, "false": False}
BINDING: Final = "HTTP+JSON"

ROUTES: Final = (
    ("POST", "/message:send", "SendMessage"),
    ("POST", "/message:stream", "SendStreamingMessage"),
    ("GET", "/tasks", "ListTasks"),
    ("POST", "/tasks/{id}:cancel", "CancelTask"),
    ("POST", "/tasks/{id}:subscribe", "SubscribeToTask"),
    ("GET", "/tasks/{id}:subscribe", "SubscribeToTask"),
    ("GET", "/tasks/{id}", "GetTask"),
    ("POST", "/tasks/{taskId}/pushNotificationConfigs", "CreateTaskPushNotificationConfig"),
    ("GET", "/tasks/{taskId}/pushNotificationConfigs", "ListTaskPushNotificationConfigs"),
    ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}", "GetTaskPushNotificationConfig"),
    ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}", "DeleteTaskPushNotificationConfig"),
    ("GET", "/extendedAgentCard", "GetExtendedAgentCard"),
)
"""By HTTP method and path below the binding's own: the operation. The names in braces are members of its params."""
TENANT: Final = "tenant"
PREFIXES: Final = (REST_PATH, f"{REST_PATH}/{{{TENANT}}}")
"""What stands before these paths: a tenant may be named."""
PATHS: Final = {
    prefix + path: [method for method, other, _ in ROUTES if other == path]
    for prefix in PREFIXES
    for _, path, _ in ROUTES
}
"""The paths and what each takes."""
CACHING: Final[Mapping[str, Mapping[str, str]]] = {
    "GetExtendedAgentCard": {
        hdrs.CACHE_CONTROL: f"private, max-age={MAX_AGE}",
        hdrs.VARY: f"{hdrs.ACCEPT}, {hdrs.AUTHORIZATION}, {VERSION}, {EXTENSIONS}",
    }
}
"""The headers of those operations whose answers may be kept."""


class Rest:
    """Answers requests below `/a2a/v1`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._operations = operations(peer.conversations)

    def install(self, app: web.Application) -> None:
        """Add the routes, and the answers for paths and methods that are none of them."""
        for prefix in PREFIXES:
            for method, path, name in ROUTES:
                app.router.add_route(method, prefix + path, self._handler(name))
        app.middlewares.append(self._answer_strays)

    def _handler(self, name: str) -> Handler:
        """Return what answers requests for an operation."""

        async def handle(request: web.Request) -> web.StreamResponse:
            exchange = Exchange.of(request, self._peer)
            try:
                body = await self._read(exchange)
            except Failure as failure:
                return await refuse(exchange, unreadable(failure), name, status_of(failure))
            except Refused as refused:
                return await refuse(exchange, refused, name)
            try:
                require_version(exchange.version, V1_0, BINDING)
                value, events = await self._begin(name, params_of(request, body), context_of(exchange))
            except Exception as error:  # noqa: BLE001 - what is not foreseen goes to the log there
                return await refuse(exchange, error, name)
            if events is not None:
                return await stream(value, events, exchange, name)
            answer = respond(200, value, exchange)
            answer.headers.update(CACHING.get(name, {}))
            return answer

        return handle

    async def _begin(
        self, name: str, given: object, context: CallContext
    ) -> tuple[object, AsyncGenerator[object, None] | None]:
        """Return the result of an operation, or its first event and those that follow. Raises A2AError."""
        answer = self._operations.answers.get(name)
        if answer is not None:
            return await answer(given, context), None
        events = self._operations.streams[name](given, context)
        return await anext(events), events

    async def _read(self, exchange: Exchange) -> object:
        """Return the JSON of a body; a request without one has an empty object. Raises Failure and Refused."""
        if not exchange.request.can_read_body:
            return {}
        return jsonrpc.parse(await self._peer.bodies.read(exchange.request, exchange.metadata, ACCEPTED))

    @web.middleware
    async def _answer_strays(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer as this binding does wherever A2A is spoken, but not at such a path, or not with such a method."""
        if request.path != "/" and not f"{request.path}/".startswith(A2A_PATH):
            return await handler(request)
        exchange = Exchange.of(request, self._peer)
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            refusal = UnsupportedOperationError(f"{request.method} is not possible here")
            answer = await refuse(exchange, refusal, request.path, error.status)
            answer.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
            return answer
        except web.HTTPNotFound:
            return await refuse(exchange, MethodNotFoundError("There is no such resource"), request.path)


def status_of(failure: Failure) -> int | None:
    """Return the HTTP status of a request that HTTP itself has an answer for, None where A2A has the status."""
    return failure.codes.http_status if failure.codes.http_status >= 400 else None


def params_of(request: web.Request, body: object) -> dict[str, object]:
    """Return the params that a request gives by its path and its body, or by its URL. Raises InvalidParamsError."""
    if not isinstance(body, dict):
        raise invalid_params("The body must be an object")
    given = dict(body) if request.method == hdrs.METH_POST else query_of(request)
    return given | {name: value for name, value in request.match_info.items() if name != TENANT}


def context_of(exchange: Exchange) -> CallContext:
    """Return what the operations are told, with the tenant that the path names. Raises InvalidRequestError."""
    return replace(exchange.context(), tenant=exchange.request.match_info.get(TENANT, ""))


def query_of(request: web.Request) -> dict[str, object]:
    """Return the params that a URL gives. Raises InvalidParamsError for one that is there twice."""
    twice = [(name, "must be given once") for name in set(request.query) if len(request.query.getall(name)) > 1]
    if twice:
        raise params.refused(sorted(twice))
    return {name: BOOLEANS.get(text, text) if name in FLAGS else text for name, text in request.query.items()}


async def stream(
    first: object, events: AsyncGenerator[object, None], exchange: Exchange, what: str
) -> web.StreamResponse:
    """Answer with a stream."""

    async def error_text(error: Exception) -> str:
        return to_text(rest_error(await exchange.judged(error, what), exchange.request_id)[1])

    # To clients of this binding an event without a name is a StreamResponse.
    wording = sse.Wording(to_text, error_text, error_name="error")
    return await sse.respond(exchange.request, first, events, wording, marks_of(exchange))


async def refuse(exchange: Exchange, error: Exception, what: str, status: int | None = None) -> web.Response:
    """Answer with an error; `status` is the HTTP status of its own that those hear whom the server knows."""
    judged = await exchange.judged(error, what)
    usual, body = rest_error(judged, exchange.request_id)
    if status is None or judged is not error:
        status = usual
    body["error"]["code"] = status
    answer = respond(status, body, exchange)
    if isinstance(judged, Refused):
        answer.headers.update(headers.challenges(status, judged.failure))
    if status == 415:
        answer.headers["Accept-Post"] = ", ".join(ACCEPTED)
    return answer


def respond(status: int, value: object, exchange: Exchange) -> web.Response:
    """Return an answer in the media type that the caller prefers."""
    return web.Response(
        body=to_text(value).encode(),
        status=status,
        headers={**marks_of(exchange), hdrs.VARY: hdrs.ACCEPT},
        content_type=media_type_for(exchange.request),
    )


def media_type_for(request: web.Request) -> str:
    """Return the media type of an answer to a request."""
    accept = Accept.read(request.headers.getall(hdrs.ACCEPT, []))
    # The Go SDK asks for nothing but a stream there, and reads an error instead of one as application/json only.
    only_stream = accept.prefer((*ACCEPTED, EVENT_STREAM)) == EVENT_STREAM
    return headers.JSON if only_stream else accept.prefer(ACCEPTED) or A2A_JSON


def marks_of(exchange: Exchange) -> dict[str, str]:
    """Return the headers of every answer."""
    return {headers.REQUEST_ID_HEADER: exchange.request_id, **exchange.marks}


def to_text(value: object) -> str:
    """Return a JSON value as it is sent."""
    return jsonrpc.to_bytes(jsonrpc.ENCODER.encode(value)).decode()
