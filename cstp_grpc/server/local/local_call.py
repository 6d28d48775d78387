"""Calls within the process: the context that handlers get in place of gRPC's, and streams of responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

import grpc

from cstp_grpc.contract.errors import CstpError, DeadlineExceeded, InvalidArgument
from cstp_grpc.contract.rpc_errors import error_from_rpc
from cstp_grpc.server.interceptors.error_status import RichStatus

THIS_PROCESS: Final = "this process"
"""The text in place of a server's address in errors."""
MAX_UNREAD_RESPONSES: Final = 16
"""Responses of a stream that wait for their reader; while there are more, the stream waits."""

TrailingMetadata = Sequence[tuple[str, str | bytes]]


class LocalCallFailed(grpc.RpcError):
    """A call that its handler ended with a status; handled like a call that failed over gRPC."""

    def __init__(self, status: RichStatus) -> None:
        super().__init__(status.details)
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status.code

    def details(self) -> str:
        return self._status.details

    def trailing_metadata(self) -> Any:
        return self._status.trailing_metadata

    def to_error(self) -> CstpError:
        return error_from_rpc(self, THIS_PROCESS)


class LocalCallContext:
    """A call as its handler sees it: its messages, its deadline, and where its responses go.

    It has those methods of grpc.aio.ServicerContext that handlers and servicers use. For one event loop.
    """

    def __init__(self, requests: Iterator[bytes], timeout: float | None, max_bytes: int) -> None:
        """Create the context of a call with these messages, none larger than `max_bytes`."""
        self._requests = requests
        self._max_bytes = max_bytes
        self._ends_at = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._on_done: list[Callable[[LocalCallContext], object]] = []
        self.admitted = asyncio.Event()
        """Set when the handler has sent initial metadata."""
        self.responses: asyncio.Queue[bytes] = asyncio.Queue(MAX_UNREAD_RESPONSES)
        """The responses of a stream that were not read yet."""

    def invocation_metadata(self) -> TrailingMetadata:
        """Return no metadata: there is no token, and the handler creates the request id."""
        return ()

    def set_trailing_metadata(self, metadata: TrailingMetadata) -> None:
        """Do nothing: an error's status repeats this metadata."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, or None without one."""
        return None if self._ends_at is None else self._ends_at - asyncio.get_running_loop().time()

    async def read(self) -> Any:
        """Return the next message of the caller, or grpc.aio.EOF. Raises InvalidArgument for one that is too large."""
        data = next(self._requests, None)
        if data is None:
            return grpc.aio.EOF
        if len(data) > self._max_bytes:
            raise InvalidArgument(f"The message has {len(data)} bytes; grpc.max_message_bytes is {self._max_bytes}")
        return data

    async def send_initial_metadata(self, metadata: TrailingMetadata) -> None:  # noqa: ARG002
        self.admitted.set()

    async def write(self, response: bytes) -> None:
        """Give a response of a stream to its reader, waiting while it is behind."""
        await self.responses.put(response)

    async def abort_with_status(self, status: RichStatus) -> NoReturn:
        """End the call with a status. Raises LocalCallFailed."""
        raise LocalCallFailed(status)

    def add_done_callback(self, callback: Callable[[LocalCallContext], object]) -> None:
        self._on_done.append(callback)

    def finish(self) -> None:
        for callback in self._on_done:
            callback(self)


def timeout_error(name: str, timeout: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(f"{name} took longer than {timeout or 0:g} s")


class LocalStream:
    """A stream of responses, on the event loop of its agent."""

    def __init__(self, context: LocalCallContext, running: asyncio.Task[None]) -> None:
        self._context = context
        self._running = running
        running.add_done_callback(self._finish)

    async def wait_until_admitted(self) -> None:
        """Wait until the handler has subscribed, so that no later event is missed, or has failed."""
        admitted = asyncio.ensure_future(self._context.admitted.wait())
        await asyncio.wait({admitted, self._running}, return_when=asyncio.FIRST_COMPLETED)
        admitted.cancel()

    async def next_response(self) -> bytes | None:
        """Wait for the next response and return it, or None after the last. Raises CstpError."""
        responses = self._context.responses
        if responses.empty() and not self._running.done():
            waiting = asyncio.ensure_future(responses.get())
            try:
                await asyncio.wait({waiting, self._running}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                waiting.cancel()
                raise
            if waiting.done():
                return waiting.result()
            waiting.cancel()
        if not responses.empty():
            return responses.get_nowait()
        if not self._running.cancelled() and (error := self._running.exception()) is not None:
            raise error.to_error() if isinstance(error, LocalCallFailed) else error
        return None

    def cancel(self) -> None:
        self._running.cancel()

    def _finish(self, running: asyncio.Task[None]) -> None:
        self._context.finish()
        if not running.cancelled():
            # Retrieved, because asyncio logs exceptions that were never retrieved, and the reader may have stopped.
            running.exception()
