"""The clients by which the MCP server calls: for each request that of its caller, so that each acts as itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from google.protobuf.message import Message

from cstp_grpc.contract.methods import RpcMethod


class ContractClient(Protocol):
    """Calls the contract as one agent; AsyncCstpClient is one."""

    async def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        """Return the response of a unary method. Raises CstpError."""
        ...


class ClientSource(Protocol):
    """Knows by which client the current request calls."""

    def lease_client(self) -> AbstractAsyncContextManager[ContractClient]:
        """Return the client of the current request's caller, which stays open within the block."""
        ...


class SingleClient:
    """The source of a server for one caller, as over standard streams."""

    def __init__(self, client: ContractClient) -> None:
        self._client = client

    @asynccontextmanager
    async def lease_client(self) -> AsyncIterator[ContractClient]:
        """Yield the client."""
        yield self._client
