"""Running an MCP server under guard: its process, and the standard streams between it and the host."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

import anyio
from anyio import to_thread
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from cstp_grpc.agents.frameworks.mcp_proxy import ToolCallProxy
from cstp_grpc.agents.frameworks.tool_guard import ToolGuard

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 2.0
"""Seconds to pass on the remaining output of an ended server. Chosen: a pipe holds 64 KiB; a pipe that stays open
longer belongs to children of the server."""
REVIEW_SECONDS: Final = 5.0
"""Seconds to record the outcomes of the last calls. Chosen: hosts kill processes that do not end."""
SIGNAL_EXIT_CODE: Final = 128
"""Shells add it to the number of the signal that ended a process, for the exit code."""


class MessagePipe:
    """Messages over a pair of streams, one per line, in the stdio framing of the protocol."""

    def __init__(self, received: IO[str], sent: IO[str]) -> None:
        self._received = received
        self._sent = sent
        self._sending = anyio.Lock()
        self._open = True

    async def __aiter__(self) -> AsyncIterator[JSONRPCMessage | ValueError]:
        # A thread that waits for a line cannot be stopped, but the task that waits for the thread can.
        while line := await to_thread.run_sync(self._received.readline, abandon_on_cancel=True):
            try:
                yield jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError as error:
                yield error

    async def send(self, message: JSONRPCMessage) -> None:
        """Write a message, unless the reader has closed the stream; that is handled elsewhere."""
        line = message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
        # A write that has begun is finished, since half a line would corrupt the next message.
        async with self._sending:
            if self._open:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(self._write, line)

    async def close(self) -> None:
        """Signal the end of the messages to the reader."""
        async with self._sending:
            self._open = False
            with suppress(BrokenPipeError):
                self._sent.close()

    def _write(self, line: str) -> None:
        try:
            self._sent.write(line)
            self._sent.flush()
        except BrokenPipeError:
            self._open = False


async def run_guarded_server(
    command: Sequence[str], tool_guard: ToolGuard, environment: Mapping[str, str], *, server_name: str | None = None
) -> int:
    """Run an MCP server for the host that started this process, and return its exit code when it has ended.

    SIGINT and SIGTERM are passed on to it. Raises OSError if it cannot be started. A thread that reads standard input
    may still run afterwards.
    """
    # Before the server starts: a signal in between would end only this process.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, encoding="utf-8", errors="replace"
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_signals, signals, process)
            code = await serve_host_and_server(process, tool_guard, server_name)
            tasks.cancel_scope.cancel()
    return code if code >= 0 else SIGNAL_EXIT_CODE - code


async def serve_host_and_server(process: subprocess.Popen[str], tool_guard: ToolGuard, server_name: str | None) -> int:
    """Pass messages between the host and the server until the server has ended; return its exit code as Popen does."""
    assert process.stdin is not None
    assert process.stdout is not None
    host, server = MessagePipe(*claim_standard_streams()), MessagePipe(process.stdout, process.stdin)
    proxy = ToolCallProxy(tool_guard, host.send, server.send, server_name=server_name)
    drained, reviewed = anyio.Event(), anyio.Event()

    async def serve_host() -> None:
        async with anyio.create_task_group() as judging:
            async for message in host:
                await proxy.pass_to_server(message, judging)
            proxy.end_input()
        # The host is done, and each of its calls is checked: the server may end as it would without the proxy.
        await server.close()

    async def serve_server() -> None:
        async with anyio.create_task_group() as ending:
            async for message in server:
                await proxy.pass_to_host(message, ending)
            drained.set()
        reviewed.set()

    async with anyio.create_task_group() as tasks:
        for task in (serve_host, serve_server):
            tasks.start_soon(task)
        code = await to_thread.run_sync(process.wait, abandon_on_cancel=True)
        with anyio.move_on_after(DRAIN_SECONDS):
            await drained.wait()
        with anyio.move_on_after(REVIEW_SECONDS):
            await proxy.abandon_calls()
            if drained.is_set():
                await reviewed.wait()
        tasks.cancel_scope.cancel()
    return code


async def pass_signals(signals: AsyncIterator[signal.Signals], process: subprocess.Popen[str]) -> None:
    async for number in signals:
        process.send_signal(number)


def claim_standard_streams() -> tuple[IO[str], IO[str]]:
    """Reserve standard input and output for the protocol: all other output goes to standard error."""
    sent = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace", newline="\n")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace"), sent
