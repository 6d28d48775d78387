"""An A2A call over HTTP: its request, context, response headers and errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
)
from aiohttp import web

from bridge import http_request
from bridge.a2a.call_context import (
    EXTENSION_URI,
    EXTENSIONS_HEADER,
    EXTENSIONS_HEADER_V0_3,
    V0_3,
    VERSION_HEADER,
    A2aCallContext,
    build_call_context,
)
from bridge.a2a.errors import UpstreamError, jsonrpc_error, unexpected_error
from bridge.a2a.services import A2aServices
from bridge.call_errors import DETAIL, error_codes
from bridge.upstream import Metadata
from cstp_grpc.contract.errors import CstpError, JsonParseError, drop_tracebacks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class A2aHttpCall:
    """The HTTP request of an A2A call, with its request id and metadata."""

    request: web.Request
    services: A2aServices
    request_id: str
    metadata: Metadata
    version: str
    """The requested A2A version, from a header or else a URL parameter; empty if none."""

    @classmethod
    def from_request(cls, request: web.Request, services: A2aServices) -> A2aHttpCall:
        request_id = http_request.read_request_id(request)
        # Repeated values are joined and not chosen from, so that contradicting ones are refused as a version that is
        # not spoken.
        version = ", ".join(request.headers.getall(VERSION_HEADER, [])) or ", ".join(
            request.query.getall(VERSION_HEADER, [])
        )
        return cls(request, services, request_id, http_request.request_metadata(request, request_id), version)

    def error_json(self, error: A2AError) -> dict[str, Any]:
        """Return the `error` member of a JSON-RPC response in the version of the caller."""
        sent = self.version.strip()
        return jsonrpc_error(error, self.request_id, v0_3=not sent or sent.startswith(V0_3))

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers that name the activated extension, under the header names that the caller used."""
        sent = {name: self._extensions(name) for name in (EXTENSIONS_HEADER, EXTENSIONS_HEADER_V0_3)}
        if EXTENSION_URI not in {
            uri.strip() for values in sent.values() for value in values for uri in value.split(",")
        }:
            return {}
        # The header of 1.0 always, that of 0.3 only to those who sent it.
        return {name: EXTENSION_URI for name, values in sent.items() if values or name == EXTENSIONS_HEADER}

    def build_context(self) -> A2aCallContext:
        """Build the context of the call. Raises InvalidRequestError if the request names no valid host."""
        try:
            address = self.services.address.resolve(self.request)
        except web.HTTPBadRequest as error:
            raise InvalidRequestError("The request does not name the host that it is for") from error
        extensions = [*self._extensions(EXTENSIONS_HEADER), *self._extensions(EXTENSIONS_HEADER_V0_3)]
        return build_call_context(self.metadata, address, extensions, self.version)

    async def visible_error(self, error: Exception, what: str) -> A2AError:
        """Return the error to answer with; `what` names the requested operation in the log."""
        if not isinstance(error, CstpError | A2AError):
            logger.error("%s %s failed in the bridge", self.request_id, what, exc_info=error)
            error = unexpected_error()
        drop_tracebacks(error)
        if isinstance(error, CstpError):
            return await self._visible_failure(error)
        return await self.services.access.visible_error(error, self.metadata)

    async def _visible_failure(self, failure: CstpError) -> A2AError:
        """Return the error for a failure, hidden from unknown callers if the bridge itself raised it."""
        # An error with such a cause is the server's own, and the server has authenticated the caller before it.
        if not isinstance(failure.__cause__, grpc.aio.AioRpcError):
            verdict = await self.services.access.visible_error(InvalidParamsError(), self.metadata)
            if isinstance(verdict, UpstreamError):
                return verdict
        return UpstreamError(failure)

    def _extensions(self, name: str) -> list[str]:
        """Return the values of a header that activates extensions."""
        return self.request.headers.getall(name, [])


def unreadable_body_error(failure: CstpError) -> A2AError:
    """Return the A2A error for a body that cannot be read or parsed."""
    detail = failure.metadata.get(DETAIL, failure.message)
    if error_codes(failure).http_status == 415:
        return ContentTypeNotSupportedError(f"Incompatible content types: {detail}")
    if isinstance(failure, JsonParseError):
        return JSONParseError(f"Invalid JSON payload: {detail}")
    return InvalidRequestError(f"Invalid Request: {detail}")
