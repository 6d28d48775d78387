"""The methods of the contract over JSON-RPC."""

from __future__ import annotations

import functools
import logging
from typing import Final

from aiohttp import web

from bridge import http_request, jsonrpc
from bridge.admission import AccessCheck
from bridge.call_errors import unexpected_failure
from bridge.http_request import BodyReader
from bridge.jsonrpc import JsonRpcEntry, JsonRpcOutcome
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.errors import CstpError

logger = logging.getLogger(__name__)

TARGET_PILLAR: Final = "target_pillar"
MAX_PILLAR_LENGTH: Final = 63
"""Characters of the longest name that a pillar can be configured with."""


class JsonRpcEndpoint:
    """Answer the JSON-RPC bodies of HTTP requests."""

    def __init__(
        self,
        forwarder: Forwarder,
        gate: AccessCheck,
        bodies: BodyReader,
        max_batch: int,
    ) -> None:
        self._forwarder = forwarder
        self._gate = gate
        self._bodies = bodies
        self._max_batch = max_batch

    async def respond(self, request: web.Request) -> web.Response:
        """Answer a JSON-RPC body."""
        request_id = http_request.read_request_id(request)
        metadata = http_request.request_metadata(request, request_id)
        try:
            body = jsonrpc.parse_body(await self._bodies.read(request, metadata), self._max_batch)
        except CstpError as failure:
            return body_error_response(failure, request_id)
        # The caller is not known here yet: each call is authenticated by the server, also within a batch.
        return await jsonrpc.respond_to_body(body, functools.partial(self._answer, metadata, request_id), request_id)

    async def _answer(self, metadata: Metadata, request_id: str, call: JsonRpcEntry) -> JsonRpcOutcome:
        """Execute a call and return its outcome."""
        if isinstance(call, jsonrpc.MalformedJsonRpcRequest):
            return JsonRpcOutcome(jsonrpc.encode_failure(call.id, call.failure, request_id), call.failure)
        try:
            value = await self._forwarder.call(call.method, call.params, metadata)
            # A notification's result is never encoded: nobody gets it, and JSON may not be able to express it.
            return JsonRpcOutcome(None if call.id is None else jsonrpc.encode_result(call.id, value))
        except CstpError as caught:
            # Errors that the bridge found itself, such as an unknown method, would tell strangers what exists here.
            failure = await self._gate.visible_failure(caught, metadata)
        except Exception:
            logger.exception("%s %s failed in the bridge", request_id, call.method)
            failure = unexpected_failure()
        if call.id is None:
            return JsonRpcOutcome(None, failure)
        intent_type = self._forwarder.intent_type(call.method)
        target_pillar = read_target_pillar(call.params)
        return JsonRpcOutcome(jsonrpc.encode_failure(call.id, failure, request_id, intent_type, target_pillar), failure)


def body_error_response(failure: CstpError, request_id: str) -> web.Response:
    """Return the response to a body from which no call can be parsed."""
    return jsonrpc.json_response(
        jsonrpc.encode_utf8(jsonrpc.encode_failure("null", failure, request_id)), request_id, failure
    )


def read_target_pillar(params: dict[str, object] | list[object]) -> str | None:
    """Return the pillar that a call names, or None if it names none that could be one."""
    pillar = params.get(TARGET_PILLAR) if isinstance(params, dict) else None
    # It is echoed in the error, so that its length is bounded here: the server has refused the call and checked
    # nothing.
    return pillar if isinstance(pillar, str) and len(pillar) <= MAX_PILLAR_LENGTH else None
