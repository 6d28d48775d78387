"""Authenticate callers at the gRPC server before the bridge refuses or reads anything expensive."""

from __future__ import annotations

from typing import Any, Final

import grpc

from bridge.upstream import Forwarder, Metadata
from cstp_grpc.errors import CstpError

ACCESS_METHOD: Final = "cstp.getAccess"
LARGE_REQUEST_BYTES: Final = 65_536
"""Size above which a request is read only for callers that the server knows. Chosen: reading a larger one takes
milliseconds of the event loop, which are not spent on strangers."""


class AccessCheck:
    """Hide errors and card details of the bridge from callers that the gRPC server does not know."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def visible_failure(self, failure: CstpError, metadata: Metadata) -> CstpError:
        """Return the failure to answer with: the server's own if it refuses the caller altogether."""
        # An error of the server itself: it has authenticated the caller already.
        if isinstance(failure.__cause__, grpc.aio.AioRpcError):
            return failure
        try:
            await self.fetch_access(metadata)
        except CstpError as refused:
            return refused
        return failure

    async def fetch_access(self, metadata: Metadata) -> dict[str, Any]:
        """Return the server's description of a caller. Raises CstpError, also for an unknown caller."""
        return await self._forwarder.call(ACCESS_METHOD, {}, metadata)
