"""The transports of clients that call no server: calls on a data folder, answered within the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Final, Self, TypeVar

from google.protobuf.message import Message

from cstp_grpc.client.async_client import AsyncResponseStream, is_current_task_cancelled
from cstp_grpc.client.grpc_transport import ResponseStream, client_closed_error
from cstp_grpc.config import ConfigError, Settings
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.errors import Unavailable
from cstp_grpc.local.local_agent import LocalAgent
from cstp_grpc.local.local_call import THIS_PROCESS, LocalStream
from cstp_grpc.local.local_settings import choose_local_agent, read_local_settings
from cstp_grpc.server.startup_failures import describe_startup_failure
from cstp_grpc.storage.locks import AlreadyRunning

T = TypeVar("T")

IN_USE_HINT: Final = "if that is a server, call it in place of the folder"


class LocalFolder:
    """A data folder that is opened by the first call. Thread-safe."""

    def __init__(self, settings: Settings, agent: str) -> None:
        self._settings = settings
        self._agent = agent
        # Held while opening, which takes longer than most calls, and while closing.
        self._lock = threading.Lock()
        self._opened: LocalAgent | None = None
        self._closed = False

    def open(self) -> LocalAgent:
        """Open the folder, unless it is open. Raises Unavailable and ConfigError."""
        with self._lock:
            if self._closed:
                raise client_closed_error()
            if self._opened is not None:
                return self._opened
            try:
                agent = LocalAgent(self._settings, self._agent)
            except Exception as error:
                raise opening_error(error) from error
            self._opened = agent
            return agent

    @property
    def opened(self) -> LocalAgent | None:
        """What is open, or None."""
        # Without the lock: reading a reference is atomic.
        return self._opened

    def close(self) -> None:
        """Close the folder for good."""
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()


def opening_error(error: Exception) -> Exception:
    """Return the error for a folder that cannot be opened; retrying is useless."""
    message = None if isinstance(error, ConfigError) else describe_startup_failure(error)
    if message is None:
        return error
    found = Unavailable(f"{message}; {IN_USE_HINT}" if isinstance(error, AlreadyRunning) else message)
    found.final = True
    return found


class LocalTransport:
    """Calls a data folder in this process. Thread-safe."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder

    def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        """Return the response of a unary method within `timeout` seconds. Raises CstpError."""
        return self.send(method, [request], timeout)

    def send(self, method: RpcMethod, requests: Iterable[Message], timeout: float) -> Message:
        """Return the response of a client-streaming method within `timeout` seconds. Raises CstpError."""
        return wait_for(self._folder.open().start_call(method, requests, timeout))

    def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> ResponseStream:
        """Return the response stream of a server-streaming method; it ends after `timeout` seconds, if given."""
        agent = self._folder.open()
        stream = wait_for(agent.start_stream(method, request, timeout))
        return ResponseStream(LocalStreamReader(agent, stream, method), THIS_PROCESS)

    def close(self) -> None:
        """Close the folder."""
        self._folder.close()


def wait_for(running: Future[T]) -> T:
    """Wait for a call and return its result; an interruption cancels it. Raises Unavailable if the client is closed."""
    try:
        return running.result()
    except CancelledError:
        # Nobody else cancels it.
        raise client_closed_error() from None
    except BaseException:
        running.cancel()
        raise


async def await_future(running: Future[T]) -> T:
    """Await a call and return its result; a cancellation cancels it. Raises Unavailable if the client is closed."""
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        # Closing cancels the call, which looks like a cancellation of the waiting task.
        if running.cancelled() and not is_current_task_cancelled():
            raise client_closed_error() from None
        raise


class LocalStreamReader:
    """Reads a stream from other threads, for ResponseStream."""

    def __init__(self, agent: LocalAgent, stream: LocalStream, method: RpcMethod) -> None:
        self._agent = agent
        self._stream = stream
        self._decode: Callable[[bytes], Message] = method.response.FromString

    def __next__(self) -> Message:
        """Wait for the next response. Raises CstpError."""
        data = wait_for(self._agent.read_stream(self._stream))
        if data is None:
            raise StopIteration
        return self._decode(data)

    def cancel(self) -> None:
        """End the stream."""
        self._agent.cancel_stream(self._stream)


class AsyncLocalTransport:
    """Calls a data folder in this process, for any event loop. Cancelling the task that awaits a call cancels it."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder

    async def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        """Return the response of a unary method within `timeout` seconds. Raises CstpError."""
        return await self.send(method, [request], timeout)

    async def send(
        self, method: RpcMethod, requests: Iterable[Message] | AsyncIterable[Message], timeout: float
    ) -> Message:
        """Return the response of a client-streaming method within `timeout` seconds. Raises CstpError."""
        sent = [each async for each in requests] if isinstance(requests, AsyncIterable) else requests
        agent = await self._open()
        return await await_future(agent.start_call(method, sent, timeout))

    async def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> AsyncResponseStream:
        """Return the response stream of a server-streaming method; it ends after `timeout` seconds, if given."""
        agent = await self._open()
        stream = await await_future(agent.start_stream(method, request, timeout))
        return AsyncResponseStream(AsyncLocalStreamReader(agent, stream, method), THIS_PROCESS)

    async def close(self) -> None:
        """Close the folder."""
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
        """Return the reader itself."""
        return self

    async def __anext__(self) -> Message:
        """Wait for the next response. Raises CstpError."""
        data = await await_future(self._agent.read_stream(self._stream))
        if data is None:
            raise StopAsyncIteration
        return self._decode(data)

    def cancel(self) -> None:
        """End the stream."""
        self._cancelled = True
        self._agent.cancel_stream(self._stream)

    def cancelled(self) -> bool:
        """Return whether the stream was ended by `cancel`."""
        return self._cancelled


def open_local_transport(target: str, agent: str | None, config: Path | None) -> LocalTransport:
    """Return the transport for a target `local:PATH`. Raises ConfigError and InvalidArgument."""
    return LocalTransport(choose_local_folder(target, agent, config))


def open_async_local_transport(target: str, agent: str | None, config: Path | None) -> AsyncLocalTransport:
    """Return the asynchronous transport for a target `local:PATH`. Raises ConfigError and InvalidArgument."""
    return AsyncLocalTransport(choose_local_folder(target, agent, config))


def choose_local_folder(target: str, agent: str | None, config: Path | None) -> LocalFolder:
    """Return the data folder of a target, to be opened as an agent. Raises ConfigError and InvalidArgument."""
    settings = read_local_settings(target, config)
    return LocalFolder(settings, choose_local_agent(settings, agent))
