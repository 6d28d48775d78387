"""The HTTP+JSON binding of A2A 1.0."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from a2a.utils.errors import MethodNotFoundError, UnsupportedOperationError
from aiohttp import hdrs, web
from google.api import annotations_pb2
from google.protobuf.descriptor import MethodDescriptor

from bridge import http_request, http_response, jsonrpc
from bridge.a2a import call_context
from bridge.a2a.agent_card import A2A_PATH, CARD_MAX_AGE, REST_PATH
from bridge.a2a.errors import UpstreamError, describe_error, invalid_params, rest_error, violations_error
from bridge.a2a.operations import A2A_SERVICE, JSON_V1_0, bind_operations
from bridge.a2a.request_handler import A2aServices
from bridge.call_errors import error_codes
from bridge.call_observation import METHOD, attach_failures
from bridge.http_response import AcceptHeader
from cstp_grpc.contract.errors import CstpError, FieldViolation

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

A2A_JSON: Final = "application/a2a+json"
ACCEPTED_TYPES: Final = (A2A_JSON, http_request.APPLICATION_JSON)
"""The media types of requests and of answers, the usual one first."""
EVENT_STREAM: Final = "text/event-stream"
BOOLEAN_PARAMETERS: Final = {"includeArtifacts"}
"""Parameters of a URL that are true or false."""
BOOLEANS: Final[Mapping[str, object]] = {"true": True, "false": False}
BINDING: Final = "HTTP+JSON"

TENANT: Final = "tenant"
PATH_VARIABLE: Final = re.compile(r"{(\w+)=\*}")
"""A variable of one segment, as `google.api.http` writes it."""


def read_http_routes() -> dict[str, dict[str, str]]:
    """Return the operation by path and HTTP method, from the HTTP options of A2A's service.

    The names in braces are members of the params. Every path exists with and without a tenant.
    """
    found: dict[str, dict[str, str]] = {}
    for rpc in A2A_SERVICE.methods:
        # Routes come from the proto itself, so that a new binding of an rpc needs no edit here.
        options = rpc.GetOptions().Extensions[annotations_pb2.http]
        for rule in (options, *options.additional_bindings):
            method = rule.WhichOneof("pattern") or ""
            operations = found.setdefault(route_path(rpc, getattr(rule, method)), {})
            if rpc.name == "SubscribeToTask":
                # The options of the proto have GET; the text of the specification and the clients of the SDKs have
                # POST.
                operations[hdrs.METH_POST] = rpc.name
            operations[method.upper()] = rpc.name
    # `/tasks/{id}` also matches `/tasks/1:cancel`, so paths with a verb must be registered before those without.
    return dict(sorted(found.items(), key=lambda item: item[0].endswith("}")))


def route_path(rpc: MethodDescriptor, template: str) -> str:
    fields = rpc.input_type.fields_by_name
    return REST_PATH + PATH_VARIABLE.sub(lambda match: f"{{{fields[match[1]].json_name}}}", template)


REST_ROUTES: Final = read_http_routes()
"""The operation by path and HTTP method."""
FALLBACK_PATHS: Final = ("/", A2A_PATH.rstrip("/"), f"{A2A_PATH}{{rest:.*}}")
"""The paths whose unknown resources and methods are answered with errors of A2A."""
CACHE_HEADERS: Final[Mapping[str, Mapping[str, str]]] = {
    "GetExtendedAgentCard": {
        hdrs.CACHE_CONTROL: f"private, max-age={CARD_MAX_AGE}",
        hdrs.VARY: ", ".join(
            (hdrs.ACCEPT, hdrs.AUTHORIZATION, call_context.VERSION_HEADER, call_context.EXTENSIONS_HEADER)
        ),
    }
}
"""The headers of those operations whose answers may be kept."""


class A2aRestEndpoint:
    """Answers requests below `/a2a/v1`."""

    def __init__(self, services: A2aServices) -> None:
        self._services = services
        self._operations = bind_operations(services.handler, JSON_V1_0)

    def install(self, app: web.Application) -> None:
        for path, operations in REST_ROUTES.items():
            for method, name in operations.items():
                app.router.add_route(method, path, self._handler(name))

    def install_fallback(self, app: web.Application) -> None:
        """Add A2A error responses for unknown paths and methods; the last routes of an application."""
        # They are routes and no middleware, so that calls of other paths do not come by here. aiohttp asks the routes
        # with the longest fixed beginning first, and those with the same one in the order in which they were added.
        for path in FALLBACK_PATHS:
            app.router.add_route(hdrs.METH_ANY, path, self._answer_unrouted)

    def _handler(self, name: str) -> Handler:
        """Build the handler of an operation."""

        async def handle(request: web.Request) -> web.StreamResponse:
            request[METHOD] = name
            http_call = call_context.A2aHttpCall.from_request(request, self._services.access, self._services.address)
            try:
                body = await self._read(http_call)
            except CstpError as failure:
                return await respond_with_error(
                    http_call, call_context.unreadable_body_error(failure), name, own_http_status(failure)
                )
            except UpstreamError as refused:
                return await respond_with_error(http_call, refused, name)
            try:
                call_context.require_version(http_call.version, call_context.V1_0, BINDING)
                params = request_params(request, body)
                # The path may name a tenant.
                context = replace(http_call.build_context(), tenant=request.match_info.get(TENANT, ""))
                value, events = await self._begin(name, params, context)
            except Exception as error:  # noqa: BLE001 - unexpected errors are logged there
                return await respond_with_error(http_call, error, name)
            if events is not None:
                return await respond_with_stream(value, events, http_call, name)
            answer = build_response(200, value, http_call)
            answer.headers.update(CACHE_HEADERS.get(name, {}))
            return answer

        return handle

    async def _begin(
        self, name: str, params: object, context: call_context.A2aCallContext
    ) -> tuple[object, AsyncGenerator[object, None] | None]:
        """Return the result of an operation, or its first event and the following ones. Raises A2AError."""
        answer = self._operations.answers.get(name)
        if answer is not None:
            return await answer(params, context), None
        events = self._operations.streams[name](params, context)
        return await anext(events), events

    async def _read(self, http_call: call_context.A2aHttpCall) -> object:
        """Parse the JSON body; a request without one has an empty object. Raises CstpError and UpstreamError."""
        if not http_call.request.can_read_body:
            return {}
        content = await self._services.bodies.read(http_call.request, http_call.metadata, ACCEPTED_TYPES)
        return jsonrpc.parse_json(content)

    async def _answer_unrouted(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for an unknown path or method with an error of this binding."""
        http_call = call_context.A2aHttpCall.from_request(request, self._services.access, self._services.address)
        allowed = await allowed_methods(request)
        if not allowed:
            return await respond_with_error(http_call, MethodNotFoundError("There is no such resource"), request.path)
        refusal = UnsupportedOperationError(f"{request.method} is not possible here")
        answer = await respond_with_error(http_call, refusal, request.path, HTTPStatus.METHOD_NOT_ALLOWED)
        answer.headers[hdrs.ALLOW] = ",".join(sorted(allowed))
        return answer


async def allowed_methods(request: web.Request) -> set[str]:
    """Return the HTTP methods that a path takes; empty if there is no such path."""
    found = [await resource.resolve(request) for resource in request.app.router.resources()]
    return {method for _, methods in found for method in methods} - {hdrs.METH_ANY}


def own_http_status(failure: CstpError) -> int | None:
    """Return the HTTP status of a failure that HTTP itself defines, or None if A2A defines it."""
    # Only statuses of HTTP itself, such as 413 and 415; 200, with which JSON-RPC carries its errors, means nothing
    # here.
    status = error_codes(failure).http_status
    return status if status >= 400 else None


def request_params(request: web.Request, body: object) -> dict[str, object]:
    """Return the params in the path and in the body, or in the URL. Raises InvalidParamsError."""
    if not isinstance(body, dict):
        raise invalid_params("The body must be an object")
    params = dict(body) if request.method == hdrs.METH_POST else query_params(request)
    # The path wins: what the route names cannot be overwritten by the body.
    return params | {name: value for name, value in request.match_info.items() if name != TENANT}


def query_params(request: web.Request) -> dict[str, object]:
    """Return the params in a URL. Raises InvalidParamsError for a repeated one."""
    repeated = [name for name in set(request.query) if len(request.query.getall(name)) > 1]
    if repeated:
        raise violations_error([FieldViolation(name, "must be given once") for name in sorted(repeated)])
    return {
        name: BOOLEANS.get(text, text) if name in BOOLEAN_PARAMETERS else text for name, text in request.query.items()
    }


async def respond_with_stream(
    first: object, events: AsyncGenerator[object, None], http_call: call_context.A2aHttpCall, what: str
) -> web.StreamResponse:
    async def error_text(error: Exception) -> str:
        return encode_json(rest_error(await http_call.visible_error(error, what), http_call.request_id)[1])

    # To clients of this binding an event without a name is a StreamResponse.
    encoder = http_response.EventEncoder(encode_json, error_text, error_name="error")
    return await http_response.stream_events(http_call.request, first, events, encoder, common_headers(http_call))


async def respond_with_error(
    http_call: call_context.A2aHttpCall, error: Exception, what: str, status: int | None = None
) -> web.Response:
    """Answer with an error; `status` is a more specific HTTP status for known callers."""
    visible = await http_call.visible_error(error, what)
    usual, body = rest_error(visible, http_call.request_id)
    # The more specific status is about the body, and unknown callers learn nothing about that.
    if status is None or visible is not error:
        status = usual
    # google.rpc.Status in HTTP+JSON repeats the HTTP status, whichever was chosen.
    body["error"]["code"] = status
    answer = build_response(status, body, http_call)
    attach_failures(answer, describe_error(visible, status))
    if isinstance(visible, UpstreamError):
        answer.headers.update(http_response.challenge_headers(status, visible.failure))
    if status == 415:
        answer.headers["Accept-Post"] = ", ".join(ACCEPTED_TYPES)
    return answer


def build_response(status: int, value: object, http_call: call_context.A2aHttpCall) -> web.Response:
    return web.Response(
        body=encode_json(value).encode(),
        status=status,
        headers={**common_headers(http_call), hdrs.VARY: hdrs.ACCEPT},
        content_type=media_type_for(http_call.request),
    )


def media_type_for(request: web.Request) -> str:
    accept = AcceptHeader.parse(request.headers.getall(hdrs.ACCEPT, []))
    # The Go SDK accepts only an event stream there, and reads an error in its place only as application/json.
    only_stream = accept.prefer((*ACCEPTED_TYPES, EVENT_STREAM)) == EVENT_STREAM
    return http_request.APPLICATION_JSON if only_stream else accept.prefer(ACCEPTED_TYPES) or A2A_JSON


def common_headers(http_call: call_context.A2aHttpCall) -> dict[str, str]:
    return {http_request.REQUEST_ID_HEADER: http_call.request_id, **http_call.response_headers}


def encode_json(value: object) -> str:
    return jsonrpc.encode_utf8(jsonrpc.ENCODER.encode(value)).decode()
