"""The transport of an asynchronous client without a server, for any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Self, TypeVar

from google.protobuf.message import Message

from cstp_grpc.client.async_client import AsyncResponseStream, is_current_task_cancelled
from cstp_grpc.client.grpc_transport import client_closed_error
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.server.local.local_agent import LocalAgent
from cstp_grpc.server.local.local_call import THIS_PROCESS, LocalStream
from cstp_grpc.server.local.local_transport import LocalFolder, choose_local_folder

T = TypeVar("T")


class AsyncLocalTransport:
    """Calls a data folder in this process, for any event loop. Cancelling the task that awaits a call cancels it."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder

    async def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        return await self.send(method, [request], timeout)

    async def send(
        self, method: RpcMethod, requests: Iterable[Message] | AsyncIterable[Message], timeout: float
    ) -> Message:
        sent = [each async for each in requests] if isinstance(requests, AsyncIterable) else requests
        agent = await self._open()
        return await await_future(agent.start_call(method, sent, timeout))

    async def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> AsyncResponseStream:
        agent = await self._open()
        stream = await await_future(agent.start_stream(method, request, timeout))
        return AsyncResponseStream(AsyncLocalStreamReader(agent, stream, method), THIS_PROCESS)

    async def close(self) -> None:
        await asyncio.to_thread(self._folder.close)

    async def _open(self) -> LocalAgent:
        # In a thread: opening waits for locks and reads files.
        opened = self._folder.opened
        return await asyncio.to_thread(self._folder.open) if opened is None else opened


class AsyncLocalStreamReader:
    """Reads a stream from another event loop, for AsyncResponseStream."""

    def __init__(self, agent: LocalAgent, stream: LocalStream, method: RpcMethod) -> None:
        self._agent = agent
        self._stream = stream
        self._decode: Callable[[bytes], Message] = method.response.FromString
        self._cancelled = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next response. Raises CstpError."""
        data = await await_future(self._agent.read_stream(self._stream))
        if data is None:
            raise StopAsyncIteration
        return self._decode(data)

    def cancel(self) -> None:
        self._cancelled = True
        self._agent.cancel_stream(self._stream)

    def cancelled(self) -> bool:
        """Return whether the stream was ended by `cancel`."""
        return self._cancelled


async def await_future(running: Future[T]) -> T:
    """Await a call and return its result; a cancellation cancels it. Raises Unavailable if the client is closed."""
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        # Closing cancels the call, which looks like a cancellation of the waiting task.
        if running.cancelled() and not is_current_task_cancelled():
            raise client_closed_error() from None
        raise


def open_async_local_transport(target: str, agent: str | None, config: str | Path | None) -> AsyncLocalTransport:
    """Return the asynchronous transport for a target `local:PATH`. Raises ConfigError and InvalidArgument."""
    return AsyncLocalTransport(choose_local_folder(target, agent, config))
