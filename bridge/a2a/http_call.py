"""An A2A call over HTTP: its caller, version and activated extensions, and its response headers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
)
from aiohttp import web

from bridge import http_headers
from bridge.a2a.call_context import (
    EXTENSION_URI,
    EXTENSIONS_HEADER,
    EXTENSIONS_HEADER_V0_3,
    VERSION_HEADER,
    A2aCallContext,
    build_call_context,
)
from bridge.a2a.errors import UpstreamError, unexpected_error
from bridge.a2a.services import A2aServices
from bridge.call_failures import CallFailure
from bridge.upstream import Metadata

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class A2aHttpCall:
    """The HTTP request of an A2A call, with its request id and metadata."""

    request: web.Request
    peer: A2aServices
    request_id: str
    metadata: Metadata

    @classmethod
    def from_request(cls, request: web.Request, peer: A2aServices) -> A2aHttpCall:
        """Create the call for an HTTP request."""
        request_id = http_headers.read_request_id(request)
        return cls(request, peer, request_id, http_headers.request_metadata(request, request_id))

    @property
    def version(self) -> str:
        """The requested A2A version, from a header or else a URL parameter; empty if none."""
        request = self.request
        return ", ".join(request.headers.getall(VERSION_HEADER, [])) or ", ".join(
            request.query.getall(VERSION_HEADER, [])
        )

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers that name the activated extension, under the header names that the caller used."""
        asked = {name: self._extensions(name) for name in (EXTENSIONS_HEADER, EXTENSIONS_HEADER_V0_3)}
        if EXTENSION_URI not in {
            uri.strip() for values in asked.values() for value in values for uri in value.split(",")
        }:
            return {}
        return {name: EXTENSION_URI for name, values in asked.items() if values or name == EXTENSIONS_HEADER}

    def build_context(self) -> A2aCallContext:
        """Build the context of the call. Raises InvalidRequestError if the request names no valid host."""
        try:
            address = self.peer.address.resolve(self.request)
        except web.HTTPBadRequest as error:
            raise InvalidRequestError("The request does not name the host that it is for") from error
        extensions = [*self._extensions(EXTENSIONS_HEADER), *self._extensions(EXTENSIONS_HEADER_V0_3)]
        return build_call_context(self.metadata, address, extensions, self.version)

    async def visible_error(self, error: Exception, what: str) -> A2AError:
        """Return the error to answer with; `what` names the requested operation in the log."""
        if isinstance(error, CallFailure):
            return await self._visible_failure(error)
        if not isinstance(error, A2AError):
            logger.error("%s %s failed in the bridge", self.request_id, what, exc_info=error)
            error = unexpected_error()
        return await self.peer.gate.visible_error(error, self.metadata)

    async def _visible_failure(self, failure: CallFailure) -> A2AError:
        """Return the error for a failure, hidden from unknown callers if the bridge itself raised it."""
        if not isinstance(failure.__cause__, grpc.aio.AioRpcError):
            verdict = await self.peer.gate.visible_error(InvalidParamsError(), self.metadata)
            if isinstance(verdict, UpstreamError):
                return verdict
        return UpstreamError(failure)

    def _extensions(self, name: str) -> list[str]:
        """Return the values of a header that activates extensions."""
        return self.request.headers.getall(name, [])


def unreadable_body_error(failure: CallFailure) -> A2AError:
    """Return the A2A error for a body that cannot be read or parsed."""
    detail = failure.details.get("detail", failure.message)
    if failure.codes.http_status == 415:
        return ContentTypeNotSupportedError(f"Incompatible content types: {detail}")
    if failure.reason == "PARSE_ERROR":
        return JSONParseError(f"Invalid JSON payload: {detail}")
    return InvalidRequestError(f"Invalid Request: {detail}")
