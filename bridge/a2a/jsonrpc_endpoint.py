"""A2A over JSON-RPC: the operations of 1.0 and 0.3, and CSTP's methods if the extension is activated."""

from __future__ import annotations

import functools

from a2a.utils.errors import (
    A2AError,
    InvalidRequestError,
    MethodNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from aiohttp import web

from bridge import http_request, http_response, jsonrpc
from bridge.a2a import call_context
from bridge.a2a.call_context import V0_3, V1_0, A2aCallContext, A2aHttpCall
from bridge.a2a.errors import UpstreamError, describe_error, jsonrpc_failure
from bridge.a2a.operations import JSON_V1_0, OPERATIONS, OperationTable, bind_operations
from bridge.a2a.request_handler import A2aServices
from bridge.call_errors import error_codes
from bridge.call_observation import METHOD, attach_failures
from bridge.jsonrpc import JsonRpcEntry, JsonRpcOutcome
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.platform.config import ServerSettings


class A2aJsonRpcEndpoint:
    """Answers JSON-RPC bodies."""

    def __init__(self, services: A2aServices, settings: ServerSettings) -> None:
        self._services = services
        self._operations = {V1_0: bind_operations(services.handler, JSON_V1_0)}
        self._versions: dict[str, str] = {}
        self._streaming: set[str] = set()
        for operation in OPERATIONS:
            names = {operation.rpc: V1_0, **({operation.method_v0_3: V0_3} if operation.method_v0_3 else {})}
            self._versions |= names
            if operation.is_streaming:
                self._streaming |= names.keys()
        self._prefixes = tuple({f"{name.partition('.')[0]}." for name in services.forwarder.names})
        """The prefixes of the names of CSTP's methods, such as `cstp.`."""
        self._known = frozenset((*self._versions, *services.forwarder.names))
        self._max_batch = settings.max_batch

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Answer a JSON-RPC body."""
        http_call = A2aHttpCall.from_request(request, self._services.access, self._services.address)
        try:
            content = await self._services.bodies.read(request, http_call.metadata)
            body = jsonrpc.parse_body(content, self._max_batch)
            request[METHOD] = jsonrpc.method_of_body(body, self._known)
            context = http_call.build_context()
        except CstpError as failure:
            return await body_error_response(http_call, call_context.unreadable_body_error(failure), failure)
        except A2AError as error:
            return await body_error_response(http_call, error)
        first = body.calls[0]
        if (
            not body.is_batch
            and isinstance(first, jsonrpc.JsonRpcRequest)
            # A notification has None as its id; a stream needs an id, since each of its events is a response to the
            # call.
            and first.id
            and first.method in self._streaming
        ):
            return await self._stream(first, first.id, http_call, context)

        answer = functools.partial(self._answer, http_call, context)
        return await jsonrpc.respond_to_body(body, answer, http_call.request_id, http_call.response_headers)

    async def _answer(self, http_call: A2aHttpCall, context: A2aCallContext, call: JsonRpcEntry) -> JsonRpcOutcome:
        """Execute a call that does not stream and return its outcome."""
        if isinstance(call, jsonrpc.MalformedJsonRpcRequest):
            return await failed_outcome(call.id, call_context.unreadable_body_error(call.failure), http_call, "a call")
        if call.method in self._streaming:
            return await self._refuse_stream(call, http_call)
        try:
            self._require_version(call.method, http_call)
            if call.method in self._versions:
                known = await self._load_operations(self._versions[call.method])
                value = await known.answers[call.method](call.params, context)
            else:
                self._require_extension(call.method, context)
                # Methods of CSTP belong to no version of A2A, and go to the server as from the endpoint /cstp.
                value = await self._services.forwarder.call(call.method, call.params, http_call.metadata)
            return JsonRpcOutcome(None if call.id is None else jsonrpc.encode_result(call.id, value))
        except Exception as error:  # noqa: BLE001 - unexpected errors are logged there
            return await failed_outcome(call.id, error, http_call, call.method)

    def _require_extension(self, method: str, context: A2aCallContext) -> None:
        """Raise MethodNotFoundError unless a method is one of CSTP's, and the extension is activated."""
        if not method.startswith(self._prefixes):
            raise MethodNotFoundError("Method not found")
        if not call_context.is_extension_activated(context):
            hint = f"send {call_context.EXTENSIONS_HEADER}: {call_context.EXTENSION_URI} to call methods of CSTP"
            raise MethodNotFoundError(f"Method not found; {hint}")

    def _require_version(self, method: str, http_call: A2aHttpCall) -> None:
        """Raise VersionNotSupportedError unless the method belongs to the requested version."""
        call_context.parse_version(http_call.version)
        if method in self._versions:
            call_context.require_version(http_call.version, self._versions[method], method)

    async def _load_operations(self, version: str) -> OperationTable:
        found = self._operations.get(version)
        if found is None:
            await call_context.load_sdk_v0_3()
            from bridge.a2a import v0_3_json

            found = self._operations[version] = bind_operations(self._services.handler, v0_3_json.JSON_V0_3)
        return found

    async def _refuse_stream(self, call: jsonrpc.JsonRpcRequest, http_call: A2aHttpCall) -> JsonRpcOutcome:
        """Refuse a streaming call in a batch or a notification, where no stream can be sent."""
        if call.id is None:
            error: A2AError = InvalidRequestError(f"{call.method} answers with a stream and needs an id")
        else:
            error = UnsupportedOperationError(f"{call.method} answers with a stream and cannot be part of a batch")
        return await failed_outcome(call.id or "null", error, http_call, call.method)

    async def _stream(
        self, call: jsonrpc.JsonRpcRequest, call_id: str, http_call: A2aHttpCall, context: A2aCallContext
    ) -> web.StreamResponse:
        """Answer a call with a stream, or with a plain error if it fails before the first event."""

        async def error_text(error: Exception) -> str:
            visible = await http_call.visible_error(error, call.method)
            return jsonrpc.encode_utf8(jsonrpc.encode_error(call_id, http_call.error_json(visible))).decode()

        def event_text(event: object) -> str:
            return jsonrpc.encode_utf8(jsonrpc.encode_result(call_id, event)).decode()

        headers = {http_request.REQUEST_ID_HEADER: http_call.request_id, **http_call.response_headers}
        try:
            self._require_version(call.method, http_call)
            known = await self._load_operations(self._versions[call.method])
            events = known.streams[call.method](call.params, context)
            # Nothing is sent before the first event: until then an error can still be answered with its own HTTP
            # status.
            first = await anext(events)
        except Exception as error:  # noqa: BLE001 - unexpected errors are logged there
            outcome = await failed_outcome(call_id, error, http_call, call.method)
            content = jsonrpc.encode_utf8(outcome.response or "")
            status = error_codes(outcome.failure).http_status if outcome.failure else 200
            # Clients of 0.3 expect a stream of one event.
            is_old = self._versions[call.method] == V0_3 and not isinstance(error, VersionNotSupportedError)
            if status == 200 and is_old:
                return await http_response.send_single_event(http_call.request, content.decode(), headers)
            response = jsonrpc.json_response(content, http_call.request_id, outcome.failure, http_call.response_headers)
            attach_failures(response, outcome.counted)
            return response
        return await http_response.stream_events(
            http_call.request, first, events, http_response.EventEncoder(event_text, error_text), headers
        )


async def failed_outcome(call_id: str | None, error: Exception, http_call: A2aHttpCall, what: str) -> JsonRpcOutcome:
    visible = await http_call.visible_error(error, what)
    failure, counted = jsonrpc_failure(visible), describe_error(visible)
    if call_id is None:
        return JsonRpcOutcome(None, failure, counted=counted)
    encoded = jsonrpc.encode_error(call_id, http_call.error_json(visible))
    return JsonRpcOutcome(encoded, failure, counted=counted)


async def body_error_response(
    http_call: A2aHttpCall, error: A2AError, failure: CstpError | None = None
) -> web.Response:
    """Respond to a body that cannot be read; `failure` sets the HTTP status for known callers."""
    visible = await http_call.visible_error(error, "a body")
    content = jsonrpc.encode_utf8(jsonrpc.encode_error("null", http_call.error_json(visible)))
    # The server's refusal of the caller takes precedence over the fault of the body.
    shown = visible.failure if isinstance(visible, UpstreamError) else failure
    response = jsonrpc.json_response(content, http_call.request_id, shown, http_call.response_headers)
    # JSON-RPC answers most failures with 200, which says nothing.
    attach_failures(response, describe_error(visible, response.status if response.status >= 400 else None))
    return response
