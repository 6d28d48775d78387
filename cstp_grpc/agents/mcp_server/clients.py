"""The clients of the MCP server: each request uses the client of its caller, so that each caller acts as itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.methods import RpcMethod, method_by_name

MAX_PAGE: Final = 1000
"""The largest page of a listing, by the contract."""


class ContractClient(Protocol):
    """Calls the contract as one agent, such as AsyncCstpClient."""

    async def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        """Return the response of a unary method. Raises CstpError."""
        ...


class ClientSource(Protocol):
    """Provides the client for the current request."""

    def lease_client(self) -> AbstractAsyncContextManager[ContractClient]:
        """Return the client of the current request's caller, which stays open within the block."""
        ...


class SingleClient:
    """The source for a single caller, as over standard streams."""

    def __init__(self, client: ContractClient) -> None:
        self._client = client

    @asynccontextmanager
    async def lease_client(self) -> AsyncIterator[ContractClient]:
        yield self._client


async def call_by_name(client: ContractClient, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Call a method by its JSON-RPC name, with params and response in JSON. Raises CstpError."""
    method = method_by_name(name)
    return to_json(await client.call(method, from_json(params, method.request)))


async def list_pages(
    client: ContractClient, name: str, params: Mapping[str, Any], items: str, *, most: int
) -> list[dict[str, Any]]:
    """Return up to `most` items of a listing, page after page. Raises CstpError."""
    found: list[dict[str, Any]] = []
    token = ""
    while len(found) < most:
        page = await call_by_name(client, name, {**params, "pageSize": min(most, MAX_PAGE), "pageToken": token})
        found += page[items]
        token = page["nextPageToken"]
        if not token:
            break
    return found[:most]
