"""Serving one host over standard input and output."""

from __future__ import annotations

import io

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage

from cstp_grpc.agents.mcp_server.clients import ContractClient, SingleClient
from cstp_grpc.agents.mcp_server.first_answers import FirstAnswers
from cstp_grpc.agents.mcp_server.server_setup import build_mcp_server
from cstp_grpc.agents.mcp_server.unreadable_messages import ReadableMessages, WrappedStream


async def serve_stdio(client: ContractClient, first: FirstAnswers) -> None:
    """Serve the host that started this process, after the first answers, until it closes standard input.

    Other output to standard output goes to standard error meanwhile, so that only the protocol uses standard output.
    """
    server = build_mcp_server(SingleClient(client))
    lines = io.TextIOWrapper(io.BufferedReader(first.received), encoding="utf-8", errors="replace")
    async with stdio_server(anyio.wrap_file(lines)) as (received, sent):
        messages = ReadableMessages(received, sent)
        await server.run(messages, FurtherAnswers(sent, first), server.create_initialization_options())


class FurtherAnswers(WrappedStream):
    """The answers to a host, except the answer to a handshake that was already sent."""

    def __init__(self, sent: WriteStream[SessionMessage], first: FirstAnswers) -> None:
        super().__init__(sent)
        self._sent = sent
        self._answered = first.handshake_id

    async def send(self, item: SessionMessage, /) -> None:
        if self._answered is not None and getattr(item.message, "id", None) == self._answered:
            self._answered = None
        else:
            await self._sent.send(item)
