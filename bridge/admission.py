"""Authenticate callers at the gRPC server before the bridge refuses or reads anything expensive."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import grpc
from a2a.utils.errors import A2AError
from aiohttp import web

from bridge import http_headers
from bridge.a2a.errors import UpstreamError
from bridge.call_failures import CallFailure
from bridge.upstream import Forwarder, Metadata
from cstp_grpc.config import ServerSettings
from cstp_grpc.contract.json_values import printable_key

ACCESS_METHOD: Final = "cstp.getAccess"
LARGE_REQUEST_BYTES: Final = 65_536
"""Bytes; to read a larger request takes so long that it is not done for strangers."""


class AccessCheck:
    """Hide errors and card details of the bridge from callers that the gRPC server does not know."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def visible_error(self, error: A2AError, metadata: Metadata) -> A2AError:
        """Return the error to answer with: the server's own if it refuses the caller altogether."""
        if isinstance(error, UpstreamError):
            return error
        try:
            await self.fetch_access(metadata)
        except UpstreamError as refused:
            return refused
        return error

    async def visible_failure(self, failure: CallFailure, metadata: Metadata) -> CallFailure:
        """Return the failure to answer with: the server's own if it refuses the caller altogether."""
        if isinstance(failure.__cause__, grpc.aio.AioRpcError):
            return failure
        try:
            await self.fetch_access(metadata)
        except UpstreamError as refused:
            return refused.failure
        return failure

    async def fetch_access(self, metadata: Metadata) -> dict[str, Any]:
        """Return the server's description of a caller. Raises UpstreamError, also for an unknown caller."""
        try:
            return await self._forwarder.call(ACCESS_METHOD, {}, metadata)
        except CallFailure as failure:
            raise UpstreamError(failure) from failure

    async def require_own_tenants(self, tenants: Collection[str], metadata: Metadata) -> None:
        """Raise UpstreamError if a request names another tenant than that of its caller's token."""
        own = (await self.fetch_access(metadata)).get("tenant", "")
        for tenant in tenants:
            if tenant != own:
                raise UpstreamError(
                    CallFailure("PERMISSION_DENIED", f"The token is not one of the tenant {printable_key(tenant)}")
                )

    async def check_large(self, content: bytes, metadata: Metadata) -> None:
        """Raise UpstreamError if a request is large and the server does not know its caller."""
        if len(content) > LARGE_REQUEST_BYTES:
            await self.fetch_access(metadata)


MANY_VALUES: Final = 1000
"""JSON values; to convert more of them takes some milliseconds, in which nobody else is answered."""
WHITESPACE: Final = b" \t\r\n"


class BodyReader:
    """Read JSON bodies within limits.

    A body beyond LARGE_REQUEST_BYTES or MANY_VALUES values is read only for a caller that the server knows; if its
    length is declared, the caller is checked before the body arrives. No body may exceed `server.max_body_bytes` or
    `server.max_values`.
    """

    def __init__(self, gate: AccessCheck, settings: ServerSettings) -> None:
        self._gate = gate
        self._max_values = settings.max_values
        self._timeout = settings.timeout_seconds

    async def read(
        self, request: web.Request, metadata: Metadata, accepted: Collection[str] = (http_headers.APPLICATION_JSON,)
    ) -> bytes:
        """Return the body of a request of an accepted media type, before anything in it is converted.

        Raises CallFailure with the HTTP status 400, 408, 413 or 415, and UpstreamError.
        """
        http_headers.require_json(request, accepted)
        length = request.content_length or 0
        if length > request.client_max_size:
            raise http_headers.body_too_large()
        if length > LARGE_REQUEST_BYTES:
            await self._gate.fetch_access(metadata)
        content = await http_headers.read_body(request, self._timeout)
        if length <= LARGE_REQUEST_BYTES and (
            len(content) > LARGE_REQUEST_BYTES or has_more_values(content, MANY_VALUES)
        ):
            await self._gate.fetch_access(metadata)
        if has_more_values(content, self._max_values):
            raise http_headers.http_failure(413, f"the body holds more than {self._max_values} values")
        return content


def has_more_values(content: bytes, limit: int) -> bool:
    """Return whether JSON text holds more values than a limit, without converting any.

    Of text that is not JSON, at least the values before the first error count, which is all that a parser converts.
    """
    # A value takes a byte at the least, and a comma or bracket another one.
    if len(content) < 2 * limit or max_value_count(content) <= limit:
        return False
    # Some of the commas and brackets may be in texts. Without pairs of backslashes, one before a quote escapes it.
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if content.count(b'"') > 4 * limit:
        # Each text is a value, or the key of one.
        return True
    outside = b'"'.join(content.split(b'"')[::2]).translate(None, WHITESPACE)
    return max_value_count(outside) - outside.count(b"[]") - outside.count(b"{}") > limit


def max_value_count(content: bytes) -> int:
    """Return an upper bound of the number of values, from the commas and brackets."""
    return 1 + content.count(b",") + content.count(b"[") + content.count(b"{")
