"""A2A over JSON-RPC: the operations of 1.0 and of 0.3 at one endpoint, and CSTP's own methods once activated."""

from __future__ import annotations

from typing import Final

from a2a.utils.errors import (
    A2AError,
    InvalidRequestError,
    MethodNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from aiohttp import web

from bridge import calls, headers, jsonrpc, sse
from bridge.a2a.context import (
    EXTENSION_URI,
    EXTENSIONS,
    V0_3,
    V1_0,
    CallContext,
    is_activated,
    require_version,
    version_of,
)
from bridge.a2a.errors import Refused, jsonrpc_error, jsonrpc_failure
from bridge.a2a.exchange import Exchange, unreadable
from bridge.a2a.old_generation import load_old_generation
from bridge.a2a.operations import Operations, operations
from bridge.a2a.peer import Peer
from bridge.calls import Entry, Outcome
from bridge.status import Failure
from cstp_grpc.config import ServerSettings

OLD_ANSWERS: Final = (
    "message/send",
    "tasks/get",
    "tasks/cancel",
    "tasks/pushNotificationConfig/set",
    "tasks/pushNotificationConfig/get",
    "tasks/pushNotificationConfig/list",
    "tasks/pushNotificationConfig/delete",
    "agent/getAuthenticatedExtendedCard",
)
"""The operations of A2A 0.3 that answer once, known before what performs them is imported."""
OLD_STREAMS: Final = ("message/stream", "tasks/resubscribe")
"""Those that stream."""


class JsonRpc:
    """Answers JSON-RPC bodies."""

    def __init__(self, peer: Peer, settings: ServerSettings) -> None:
        self._peer = peer
        current = operations(peer.conversations)
        self._operations = {V1_0: current}
        self._streaming = {*current.streams, *OLD_STREAMS}
        self._versions = {
            **dict.fromkeys((*current.answers, *current.streams), V1_0),
            **dict.fromkeys((*OLD_ANSWERS, *OLD_STREAMS), V0_3),
        }
        self._prefixes = tuple({f"{name.partition('.')[0]}." for name in peer.forwarder.names})
        """How the names of CSTP's methods begin: `cstp.` and more."""
        self._max_batch = settings.max_batch

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Answer a body."""
        exchange = Exchange.of(request, self._peer)
        try:
            content = await self._peer.bodies.read(request, exchange.metadata)
            body = jsonrpc.read(content, self._max_batch)
            context = exchange.context()
        except Failure as failure:
            return await refuse(exchange, unreadable(failure), failure)
        except A2AError as error:
            return await refuse(exchange, error)
        first = body.calls[0]
        if not body.is_batch and isinstance(first, jsonrpc.Call) and first.id and first.method in self._streaming:
            return await self._stream(first, first.id, exchange, context)

        async def answer(call: Entry) -> Outcome:
            return await self._answer(call, exchange, context)

        return await calls.respond(body, answer, exchange.request_id, exchange.marks)

    async def _answer(self, call: Entry, exchange: Exchange, context: CallContext) -> Outcome:
        """Return what became of a call that does not stream."""
        if isinstance(call, jsonrpc.Invalid):
            return await failed(call.id, unreadable(call.failure), exchange, "a call")
        if call.method in self._streaming:
            return await self._unanswerable(call, exchange)
        try:
            value = await self._perform(call, exchange, context)
            return Outcome(None if call.id is None else jsonrpc.result(call.id, value))
        except Exception as error:  # noqa: BLE001 - what is not foreseen goes to the log there
            return await failed(call.id, error, exchange, call.method)

    async def _perform(self, call: jsonrpc.Call, exchange: Exchange, context: CallContext) -> object:
        """Return the result of a call. Raises A2AError and Failure."""
        self._require_version(call.method, exchange)
        if call.method in self._versions:
            known = await self._operations_of(self._versions[call.method])
            return await known.answers[call.method](call.params, context)
        if not call.method.startswith(self._prefixes):
            raise MethodNotFoundError("Method not found")
        if not is_activated(context):
            hint = f"send {EXTENSIONS}: {EXTENSION_URI} to call methods of CSTP"
            raise MethodNotFoundError(f"Method not found; {hint}")
        return await self._peer.forwarder.call(call.method, call.params, exchange.metadata)

    def _require_version(self, method: str, exchange: Exchange) -> None:
        """Let a method pass in the version that it belongs to. Raises VersionNotSupportedError."""
        version_of(exchange.version)
        if method in self._versions:
            require_version(exchange.version, self._versions[method], method)

    async def _operations_of(self, version: str) -> Operations:
        """Return the operations of a version of A2A."""
        found = self._operations.get(version)
        if found is None:
            await load_old_generation()
            from bridge.a2a import compat

            found = self._operations[version] = compat.operations(self._peer.conversations)
        return found

    async def _unanswerable(self, call: jsonrpc.Call, exchange: Exchange) -> Outcome:
        """Refuse a call that is answered with a stream where none can be sent."""
        if call.id is None:
            error: A2AError = InvalidRequestError(f"{call.method} answers with a stream and needs an id")
        else:
            error = UnsupportedOperationError(f"{call.method} answers with a stream and cannot be part of a batch")
        return await failed(call.id or "null", error, exchange, call.method)

    async def _stream(
        self, call: jsonrpc.Call, call_id: str, exchange: Exchange, context: CallContext
    ) -> web.StreamResponse:
        """Answer a call with a stream, or with the error alone where it fails before the first event."""

        async def error_text(error: Exception) -> str:
            judged = await exchange.judged(error, call.method)
            return jsonrpc.to_bytes(jsonrpc.refusal(call_id, jsonrpc_error(judged, exchange.request_id))).decode()

        def event_text(event: object) -> str:
            return jsonrpc.to_bytes(jsonrpc.result(call_id, event)).decode()

        marks = {headers.REQUEST_ID_HEADER: exchange.request_id, **exchange.marks}
        try:
            self._require_version(call.method, exchange)
            known = await self._operations_of(self._versions[call.method])
            events = known.streams[call.method](call.params, context)
            first = await anext(events)
        except Exception as error:  # noqa: BLE001 - what is not foreseen goes to the log there
            outcome = await failed(call_id, error, exchange, call.method)
            content = jsonrpc.to_bytes(outcome.response or "")
            status = outcome.failure.codes.http_status if outcome.failure else 200
            if status == 200 and self._wants_stream_of_error(call.method, error):
                return await sse.respond_once(exchange.request, content.decode(), marks)
            return headers.respond(content, exchange.request_id, outcome.failure, exchange.marks)
        return await sse.respond(exchange.request, first, events, sse.Wording(event_text, error_text), marks)

    def _wants_stream_of_error(self, method: str, error: Exception) -> bool:
        """Whether an error before the first event must be a stream of one event, as clients of 0.3 expect it."""
        return self._versions[method] == V0_3 and not isinstance(error, VersionNotSupportedError)


async def failed(call_id: str | None, error: Exception, exchange: Exchange, what: str) -> Outcome:
    """Return the outcome of a call that failed; a notification is not answered."""
    judged = await exchange.judged(error, what)
    failure = jsonrpc_failure(judged)
    if call_id is None:
        return Outcome(None, failure)
    return Outcome(jsonrpc.refusal(call_id, jsonrpc_error(judged, exchange.request_id)), failure)


async def refuse(exchange: Exchange, error: A2AError, failure: Failure | None = None) -> web.Response:
    """Answer a body that cannot be read; `failure` is what the HTTP status tells those that the server knows."""
    judged = await exchange.judged(error, "a body")
    content = jsonrpc.to_bytes(jsonrpc.refusal("null", jsonrpc_error(judged, exchange.request_id)))
    shown = judged.failure if isinstance(judged, Refused) else failure
    return headers.respond(content, exchange.request_id, shown, exchange.marks)
