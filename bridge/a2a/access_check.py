"""The access check of the bridge, with refusals as errors of A2A."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from a2a.utils.errors import A2AError

from bridge.a2a.errors import UpstreamError
from bridge.admission import LARGE_REQUEST_BYTES, AccessCheck
from bridge.upstream import Metadata
from cstp_grpc.contract.json_scalars import printable_key
from cstp_grpc.errors import CstpError, PermissionDenied


class A2aAccessCheck:
    """Hide errors and card details of A2A from callers that the gRPC server does not know."""

    def __init__(self, access: AccessCheck) -> None:
        self._access = access

    async def visible_error(self, error: A2AError, metadata: Metadata) -> A2AError:
        """Return the error to answer with: the server's own if it refuses the caller altogether."""
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
