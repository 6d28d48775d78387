"""Hosts of agents, by the official client of the SDK, over every transport and both revisions of the protocol."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import mcp_types
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from cstp_grpc.agents.mcp_server.clients import SingleClient
from cstp_grpc.agents.mcp_server.http_transport import HttpOptions, open_http_server
from cstp_grpc.agents.mcp_server.server_setup import build_mcp_server
from cstp_grpc.client import AsyncCstpClient
from tests.event_loops import entered_in_thread
from tests.harness import TOKENS

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
LEGACY = "legacy"
MODERN = "2026-07-28"
MODES = (LEGACY, MODERN)
"""How the client of the SDK speaks the revision of 2025-11-25, by a handshake, and that of 2026-07-28."""
MODES_OF_COMMANDS = (MODERN, pytest.param(LEGACY, marks=pytest.mark.slow))
"""The same where a test starts the command for each; `test_tools.py` starts it for both."""
SECONDS = 60.0


def stdio_parameters(target: str, agent: str = "alice", **environment: str) -> StdioServerParameters:
    """Return how a host starts the command for a CSTP server."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "cstp_grpc", "mcp", "--agent", f"grpc://{target}"],
        env={**inherited, "PYTHONPATH": str(ROOT), "CSTP_TOKEN": TOKENS[agent], **environment},
    )


def authorized_client(token: str | None, **headers: str) -> httpx2.AsyncClient:
    """Return a client whose requests have a bearer token."""
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(headers={**authorization, **headers}, timeout=SECONDS)


@contextmanager
def serving_http(target: str, options: HttpOptions | None = None) -> Iterator[str]:
    """Serve MCP over HTTP in front of a CSTP server for the length of a block, and yield its URL."""

    def enter() -> AbstractAsyncContextManager[str]:
        return open_http_server(lambda token: AsyncCstpClient(target, token), options or HttpOptions())

    with entered_in_thread(enter, "mcp-http") as url:
        yield url


@dataclass(frozen=True)
class Host:
    """A host of one transport and revision, in front of a CSTP server."""

    target: str
    transport: str
    """`memory`, `stdio`, or the URL of streamable HTTP."""
    mode: str

    def run(self, use: Callable[[Client], Awaitable[T]], agent: str = "alice", **options: Any) -> T:
        """Open a session as an agent, and return what `use` returns; `options` are those of the client."""
        return asyncio.run(asyncio.wait_for(self._session(use, agent, options), SECONDS))

    def call(self, name: str, arguments: dict[str, Any], agent: str = "alice") -> mcp_types.CallToolResult:
        """Call one tool in a session of its own."""
        return self.run(lambda client: client.call_tool(name, arguments), agent)

    async def _session(self, use: Callable[[Client], Awaitable[T]], agent: str, options: dict[str, Any]) -> T:
        if self.transport.startswith("http"):
            async with (
                authorized_client(TOKENS[agent]) as http,
                Client(streamable_http_client(self.transport, http_client=http), mode=self.mode, **options) as client,
            ):
                return await use(client)
        if self.transport == "stdio":
            async with Client(stdio_parameters(self.target, agent), mode=self.mode, **options) as client:
                return await use(client)
        async with AsyncCstpClient(self.target, TOKENS[agent]) as calls:
            server = build_mcp_server(SingleClient(calls))
            async with Client(server, mode=self.mode, **options) as client:
                return await use(client)


def text_of(result: mcp_types.CallToolResult) -> str:
    """Return the text of a tool's result."""
    [block] = result.content
    assert isinstance(block, mcp_types.TextContent)
    return block.text
