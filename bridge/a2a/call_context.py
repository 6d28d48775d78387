"""The context of an A2A call: its version, extensions, tenant, metadata and access, over HTTP and over gRPC."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from a2a.utils.errors import A2AError, VersionNotSupportedError

from bridge.a2a.errors import UpstreamError
from bridge.http_request import LARGE_REQUEST_BYTES, AccessCheck
from bridge.upstream import Metadata
from cstp_grpc.contract.errors import CstpError, PermissionDenied, drop_tracebacks
from cstp_grpc.contract.json_scalars import printable_key
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY

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


def build_call_context(metadata: Metadata, address: str, extensions: Iterable[str], version: str) -> A2aCallContext:
    """Build the context of a call; `extensions` are the values of the headers that activate extensions."""
    return A2aCallContext(metadata, address, parse_extensions(extensions), version)


def parse_extensions(values: Iterable[str]) -> frozenset[str]:
    """Parse the extension URIs in header values, each of which may hold several."""
    return frozenset(name for value in values for part in value.split(",") if (name := part.strip()))


def metadata_request_id(metadata: Metadata) -> str:
    """Return the request id in gRPC metadata."""
    return dict(metadata)[REQUEST_ID_KEY]


def is_extension_activated(context: A2aCallContext) -> bool:
    """Return whether the caller activated the CSTP extension."""
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
        raise VersionNotSupportedError(f"A2A {text[:20]} is not spoken here; send {VERSION_HEADER}: {V1_0} or {V0_3}")
    return match[1]


def require_version(sent: str, required: str, what: str) -> None:
    """Raise VersionNotSupportedError, which names `what` was requested, unless the version is the required one."""
    if parse_version(sent) != required:
        hint = (
            f"send {VERSION_HEADER}: {required}"
            if sent
            else f"without {VERSION_HEADER} a request is one of {V0_3}; send {required}"
        )
        raise VersionNotSupportedError(f"{what} belongs to A2A {required}; {hint}")


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

    async def visible_error(self, error: A2AError, metadata: Metadata) -> A2AError:
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
