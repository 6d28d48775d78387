"""One request of A2A over HTTP: who asks, in which version, and how every answer to it is marked."""

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

from bridge import headers
from bridge.a2a.context import EXTENSION_URI, EXTENSIONS, OLD_EXTENSIONS, VERSION, CallContext, call_context
from bridge.a2a.errors import Refused, unforeseen
from bridge.a2a.peer import Peer
from bridge.methods import Metadata
from bridge.status import Failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a request says around its body."""

    request: web.Request
    peer: Peer
    request_id: str
    metadata: Metadata

    @classmethod
    def of(cls, request: web.Request, peer: Peer) -> Exchange:
        """Return what a request says."""
        request_id = headers.request_id_of(request)
        return cls(request, peer, request_id, headers.metadata_of(request, request_id))

    @property
    def version(self) -> str:
        """The version of A2A that is asked for, by a header or else by a parameter of the URL; empty for none."""
        request = self.request
        return ", ".join(request.headers.getall(VERSION, [])) or ", ".join(request.query.getall(VERSION, []))

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that tell which extension is activated, under the names that the caller knows."""
        asked = {name: self._extensions(name) for name in (EXTENSIONS, OLD_EXTENSIONS)}
        if EXTENSION_URI not in {
            uri.strip() for values in asked.values() for value in values for uri in value.split(",")
        }:
            return {}
        return {name: EXTENSION_URI for name, values in asked.items() if values or name == EXTENSIONS}

    def context(self) -> CallContext:
        """Return what the operations are told. Raises InvalidRequestError where the request names no usable host."""
        try:
            address = self.peer.address.of(self.request)
        except web.HTTPBadRequest as error:
            raise InvalidRequestError("The request does not name the host that it is for") from error
        extensions = [*self._extensions(EXTENSIONS), *self._extensions(OLD_EXTENSIONS)]
        return call_context(self.metadata, address, extensions, self.version)

    async def judged(self, error: Exception, what: str) -> A2AError:
        """Return the error that the caller is answered with; `what` was asked for, as the log calls it."""
        if isinstance(error, Failure):
            return await self._judged_failure(error)
        if not isinstance(error, A2AError):
            logger.error("%s %s failed in the bridge", self.request_id, what, exc_info=error)
            error = unforeseen()
        return await self.peer.gate.judge(error, self.metadata)

    async def _judged_failure(self, failure: Failure) -> A2AError:
        """Return a failure as an error, which strangers do not hear where the bridge itself found it."""
        if not isinstance(failure.__cause__, grpc.aio.AioRpcError):
            verdict = await self.peer.gate.judge(InvalidParamsError(), self.metadata)
            if isinstance(verdict, Refused):
                return verdict
        return Refused(failure)

    def _extensions(self, name: str) -> list[str]:
        """Return the values of a header that activates extensions."""
        return self.request.headers.getall(name, [])


def unreadable(failure: Failure) -> A2AError:
    """Return the error of a body that HTTP or JSON has an answer for."""
    detail = failure.details.get("detail", failure.message)
    if failure.codes.http_status == 415:
        return ContentTypeNotSupportedError(f"Incompatible content types: {detail}")
    if failure.reason == "PARSE_ERROR":
        return JSONParseError(f"Invalid JSON payload: {detail}")
    return InvalidRequestError(f"Invalid Request: {detail}")
