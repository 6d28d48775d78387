"""The transport of a client without a server: calls on a data folder, answered within the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import Message

from cstp_grpc.client.grpc_transport import ResponseStream, client_closed_error
from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.platform.config import ConfigError, Settings
from cstp_grpc.platform.storage.locks import AlreadyRunning
from cstp_grpc.server.local.local_agent import LocalAgent
from cstp_grpc.server.local.local_call import THIS_PROCESS, LocalStream
from cstp_grpc.server.local.local_settings import choose_local_agent, read_local_settings
from cstp_grpc.server.startup_failures import describe_startup_failure

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
        # Without the lock: reading a reference is atomic.
        return self._opened

    def close(self) -> None:
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
        return self.send(method, [request], timeout)

    def send(self, method: RpcMethod, requests: Iterable[Message], timeout: float) -> Message:
        return wait_for(self._folder.open().start_call(method, requests, timeout))

    def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> ResponseStream:
        agent = self._folder.open()
        stream = wait_for(agent.start_stream(method, request, timeout))
        return ResponseStream(LocalStreamReader(agent, stream, method), THIS_PROCESS)

    def close(self) -> None:
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
        self._agent.cancel_stream(self._stream)


def open_local_transport(target: str, agent: str | None, config: str | Path | None) -> LocalTransport:
    """Return the transport for a target `local:PATH`. Raises ConfigError and InvalidArgument."""
    return LocalTransport(choose_local_folder(target, agent, config))


def choose_local_folder(target: str, agent: str | None, config: str | Path | None) -> LocalFolder:
    """Return the data folder of a target, to be opened as an agent. Raises ConfigError and InvalidArgument."""
    settings = read_local_settings(target, config)
    return LocalFolder(settings, choose_local_agent(settings, agent))
