"""The context of an A2A call: its version, extensions, tenant, metadata and access, over HTTP and over gRPC."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import grpc
from a2a.utils import errors
from aiohttp import web

from bridge import http_request
from bridge.a2a.errors import UpstreamError, jsonrpc_error, unexpected_error
from bridge.call_errors import DETAIL, error_codes
from bridge.http_request import LARGE_REQUEST_BYTES, AccessCheck, PublicUrlResolver
from bridge.upstream import Metadata
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import CstpError, JsonParseError, PermissionDenied, drop_tracebacks
from cstp_grpc.contract.json_scalars import printable_key
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY

logger = logging.getLogger(__name__)

EXTENSION_URI: Final = "urn:cstp:extension:v1"
EXTENSIONS_HEADER: Final = "A2A-Extensions"
EXTENSIONS_HEADER_V0_3: Final = "X-A2A-Extensions"
"""The name of the header in A2A 0.3."""
VERSION_HEADER: Final = "A2A-Version"

V1_0: Final = "1.0"
V0_3: Final = "0.3"
VERSION_FORM: Final = re.compile(r"(\d+\.\d+)(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class A2aCallContext:
    """The metadata, public URL, extensions, version and tenant of an A2A call."""

    metadata: Metadata
    """The metadata for the gRPC server: request id, authorization, trace."""
    address: str
    """The public address of the bridge, as `https://agent.example.com`."""
    extensions: frozenset[str]
    """The extensions that the request activates."""
    version: str
    """The version that the request asks for, as it stands there."""
    tenant: str = ""
    """The tenant that the path or the envelope of the request names; empty if none is."""


def parse_extensions(values: Iterable[str]) -> frozenset[str]:
    """Parse the extension URIs in header values, each of which may hold several."""
    return frozenset(name for value in values for part in value.split(",") if (name := part.strip()))


def metadata_request_id(metadata: Metadata) -> str:
    return dict(metadata)[REQUEST_ID_KEY]


def is_extension_activated(context: A2aCallContext) -> bool:
    return EXTENSION_URI in context.extensions


def parse_version(text: str) -> str:
    """Parse the version of a header, without its patch number; an empty one means 0.3.

    Raises VersionNotSupportedError for any version but 1.0 and 0.3.
    """
    # A2A 1.0, versioning: a request without a version is one of 0.3, the last version that had no such header.
    if not text:
        return V0_3
    match = VERSION_FORM.fullmatch(text.strip())
    if match is None or match[1] not in (V1_0, V0_3):
        raise errors.VersionNotSupportedError(
            f"A2A {text[:20]} is not spoken here; send {VERSION_HEADER}: {V1_0} or {V0_3}"
        )
    return match[1]


def require_version(sent: str, required: str, what: str) -> None:
    """Raise VersionNotSupportedError, which names `what` was requested, unless the version is the required one."""
    if parse_version(sent) != required:
        hint = (
            f"send {VERSION_HEADER}: {required}"
            if sent
            else f"without {VERSION_HEADER} a request is one of {V0_3}; send {required}"
        )
        raise errors.VersionNotSupportedError(f"{what} belongs to A2A {required}; {hint}")


SDK_MODULES_V0_3: Final = ("a2a.compat.v0_3.conversions", "a2a.compat.v0_3.proto_utils")

_imported: set[str] = set()


async def load_sdk_v0_3() -> None:
    """Import the SDK modules for A2A 0.3 in a thread, so that other requests are not blocked."""
    for name in SDK_MODULES_V0_3:
        # A set of our own and not sys.modules, where a module is listed before its import has ended in another thread.
        if name not in _imported:
            await asyncio.to_thread(importlib.import_module, name)
            _imported.add(name)


class A2aAccessCheck:
    """Hides errors and card details of A2A from callers that the gRPC server does not know."""

    def __init__(self, access: AccessCheck) -> None:
        self._access = access

    async def visible_error(self, error: errors.A2AError, metadata: Metadata) -> errors.A2AError:
        """Return the error to answer with: the server's own if it refuses the caller altogether."""
        drop_tracebacks(error)
        # An error of the server itself: it has authenticated the caller already.
        if isinstance(error, UpstreamError):
            return error
        try:
            await self.fetch_access(metadata)
        except UpstreamError as refused:
            return refused
        return error

    async def fetch_access(self, metadata: Metadata) -> dict[str, Any]:
        """Return the server's description of a caller. Raises UpstreamError, also for an unknown caller."""
        try:
            return await self._access.fetch_access(metadata)
        except CstpError as failure:
            raise UpstreamError(failure) from failure

    async def require_own_tenants(self, tenants: Collection[str], metadata: Metadata) -> None:
        """Raise UpstreamError if a request names another tenant than that of its caller's token."""
        own = (await self.fetch_access(metadata)).get("tenant", "")
        for tenant in tenants:
            if tenant != own:
                raise UpstreamError(PermissionDenied(f"The token is not one of the tenant {printable_key(tenant)}"))

    async def check_large(self, content: bytes, metadata: Metadata) -> None:
        """Raise UpstreamError if a request is large and the server does not know its caller."""
        if len(content) > LARGE_REQUEST_BYTES:
            await self.fetch_access(metadata)


@dataclass(frozen=True, slots=True)
class A2aHttpCall:
    """The HTTP request of an A2A call, with its request id and metadata."""

    request: web.Request
    access: A2aAccessCheck
    address: PublicUrlResolver
    request_id: str
    metadata: Metadata
    version: str
    """The requested A2A version, from a header or else a URL parameter; empty if none."""

    @classmethod
    def from_request(cls, request: web.Request, access: A2aAccessCheck, address: PublicUrlResolver) -> A2aHttpCall:
        request_id = http_request.read_request_id(request)
        # Repeated values are joined and not chosen from, so that contradicting ones are refused as a version that is
        # not spoken.
        version = ", ".join(request.headers.getall(VERSION_HEADER, [])) or ", ".join(
            request.query.getall(VERSION_HEADER, [])
        )
        metadata = http_request.request_metadata(request, request_id)
        return cls(request, access, address, request_id, metadata, version)

    def error_json(self, error: errors.A2AError) -> dict[str, Any]:
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
            address = self.address.resolve(self.request)
        except web.HTTPBadRequest as error:
            raise errors.InvalidRequestError("The request does not name the host that it is for") from error
        extensions = [*self._extensions(EXTENSIONS_HEADER), *self._extensions(EXTENSIONS_HEADER_V0_3)]
        return A2aCallContext(self.metadata, address, parse_extensions(extensions), self.version)

    async def visible_error(self, error: Exception, what: str) -> errors.A2AError:
        """Return the error to answer with; `what` names the requested operation in the log."""
        if not isinstance(error, CstpError | errors.A2AError):
            logger.error("%s %s failed in the bridge", self.request_id, what, exc_info=error)
            error = unexpected_error()
        drop_tracebacks(error)
        if isinstance(error, CstpError):
            return await self._visible_failure(error)
        return await self.access.visible_error(error, self.metadata)

    async def _visible_failure(self, failure: CstpError) -> errors.A2AError:
        """Return the error for a failure, hidden from unknown callers if the bridge itself raised it."""
        # An error with such a cause is the server's own, and the server has authenticated the caller before it.
        if not isinstance(failure.__cause__, grpc.aio.AioRpcError):
            verdict = await self.access.visible_error(errors.InvalidParamsError(), self.metadata)
            if isinstance(verdict, UpstreamError):
                return verdict
        return UpstreamError(failure)

    def _extensions(self, name: str) -> list[str]:
        return self.request.headers.getall(name, [])


def unreadable_body_error(failure: CstpError) -> errors.A2AError:
    detail = failure.metadata.get(DETAIL, failure.message)
    if error_codes(failure).http_status == 415:
        return errors.ContentTypeNotSupportedError(f"Incompatible content types: {detail}")
    if isinstance(failure, JsonParseError):
        return errors.JSONParseError(f"Invalid JSON payload: {detail}")
    return errors.InvalidRequestError(f"Invalid Request: {detail}")
