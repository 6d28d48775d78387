"""Serving one host over standard input and output."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from cstp_grpc.mcp_server.clients import ContractClient, SingleClient
from cstp_grpc.mcp_server.server_setup import build_mcp_server
from cstp_grpc.mcp_server.unreadable_messages import ReadableMessages


async def serve_stdio(client: ContractClient) -> None:
    """Serve the host that started this process until it closes standard input.

    Meanwhile whatever else prints to standard output goes to standard error, so that only the protocol is there.
    """
    server = build_mcp_server(SingleClient(client))
    async with stdio_server() as (received, sent):
        await server.run(ReadableMessages(received, sent), sent, server.create_initialization_options())
