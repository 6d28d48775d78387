"""Whether the gRPC server knows a caller, asked before the bridge itself refuses something."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import grpc
from a2a.utils.errors import A2AError

from bridge.a2a.errors import Refused
from bridge.methods import Forwarder, Metadata
from bridge.status import Failure
from cstp_grpc.client.json_forms import shown

WHO_AM_I: Final = "cstp.getAccess"
LARGE: Final = 65_536
"""Bytes; to read a larger request takes so long that it is not done for strangers."""


class Gate:
    """Keeps strangers from learning anything but that they are strangers."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def judge(self, error: A2AError, metadata: Metadata) -> A2AError:
        """Return the error that a caller is answered with: the server's own where it refuses the caller altogether."""
        if isinstance(error, Refused):
            return error
        try:
            await self.admit(metadata)
        except Refused as refused:
            return refused
        return error

    async def judge_failure(self, failure: Failure, metadata: Metadata) -> Failure:
        """Return the failure that a caller is told of: the server's own if it refuses the caller altogether."""
        if isinstance(failure.__cause__, grpc.aio.AioRpcError):
            return failure
        try:
            await self.admit(metadata)
        except Refused as refused:
            return refused.failure
        return failure

    async def admit(self, metadata: Metadata) -> dict[str, Any]:
        """Return what the server says of a caller. Raises Refused, also for whom it does not know."""
        try:
            return await self._forwarder.call(WHO_AM_I, {}, metadata)
        except Failure as failure:
            raise Refused(failure) from failure

    async def admit_tenants(self, tenants: Collection[str], metadata: Metadata) -> None:
        """Let a request pass that names no other tenant than that of its caller's token. Raises Refused."""
        own = (await self.admit(metadata)).get("tenant", "")
        for tenant in tenants:
            if tenant != own:
                raise Refused(Failure("PERMISSION_DENIED", f"The token is not one of the tenant {shown(tenant)}"))

    async def admit_large(self, content: bytes, metadata: Metadata) -> None:
        """Let a request pass that is small, or whose caller the server knows. Raises Refused."""
        if len(content) > LARGE:
            await self.admit(metadata)
